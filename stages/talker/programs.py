"""The Triton programs that `kernels` launches.

With EARLY a program may start before the launch in front of it has ended (programmatic dependent launch). What stands
before `gdc_wait` reads nothing that the same pass writes. Of the pass before it everything is written: `draw` lets the
next launch start only when it has waited for its own input, and each launch in front has waited for the one before it.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_PIECE: tl.constexpr = tl.constexpr(1024)
"""Bytes of weights that one thread brings into the L2 cache at once."""
_BRING: tl.constexpr = tl.constexpr(
    "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], 1024; mov.b32 $0, 0; }"
)
_PIECES: tl.constexpr = tl.constexpr(256)
"""Pieces that a program brings at a time."""


@triton.jit
def product(
    x,
    weight,
    out,
    ahead,
    ahead_bytes,
    rows,
    columns,
    inner,
    x_stride,
    eps,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    EVEN: tl.constexpr,
    EARLY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """A block of out [rows, columns] = x · weightᵀ. NORM divides a row by its root mean square, behind the product."""
    if EARLY:
        gdc_launch_dependents()
        _bring(ahead, ahead_bytes)
        gdc_wait()
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INNER)
    inside = (row < rows)[:, None]
    x_at = x + row[:, None] * x_stride + k[None, :]
    weight_at = weight + column[:, None] * inner + k[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, inner, INNER):
        if EVEN:
            a = tl.load(x_at + start, mask=inside, other=0.0)
            b = tl.load(weight_at + start)
        else:
            left = (k < inner - start)[None, :]
            a = tl.load(x_at + start, mask=inside & left, other=0.0)
            b = tl.load(weight_at + start, mask=(column < columns)[:, None] & left, other=0.0)
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
        if NORM:
            squares += tl.sum(a.to(tl.float32) * a.to(tl.float32), 1)
    if NORM:
        sums *= tl.rsqrt(squares / inner + eps)[:, None]
    if GATED:
        gate, up = tl.split(tl.reshape(sums, (ROWS, COLUMNS // 2, 2)))
        sums = gate * tl.sigmoid(gate) * up
        columns //= 2
        column = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    out_at = out + row[:, None] * columns + column[None, :]
    inside &= (column < columns)[None, :]
    if ADD:
        sums += tl.load(out_at, mask=inside, other=0.0)
    tl.store(out_at, sums, mask=inside)


@triton.jit
def _bring(ahead, ahead_bytes):
    """This program's share of some weights, on its way from memory into the L2 cache."""
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    programs = tl.num_programs(0) * tl.num_programs(1)
    for first in range(program * _PIECES, ahead_bytes // _PIECE, programs * _PIECES):
        piece = first + tl.arange(0, _PIECES)
        wanted = (piece < ahead_bytes // _PIECE).to(tl.int32)
        at = ahead.to(tl.pointer_type(tl.int8)) + piece * _PIECE
        tl.inline_asm_elementwise(_BRING, "=r,l,r", [at, wanted], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def attend(
    qkv,
    qk_norm,
    cos,
    sin,
    keys,
    values,
    out,
    start,
    eps,
    scale,
    EARLY: tl.constexpr,
    COUNT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """One key/value head of one row. A head is held as two halves, which rotation mixes."""
    if EARLY:
        gdc_launch_dependents()
    row, head = tl.program_id(0), tl.program_id(1)
    HEAD: tl.constexpr = 2 * HALF
    HEADS: tl.constexpr = KV_HEADS * GROUP
    half = tl.arange(0, HALF)
    positions = tl.arange(0, POSITIONS)
    group = tl.arange(0, GROUP_BLOCK)
    cached = (row * KV_HEADS + head) * POSITIONS * HEAD + positions[:, None] * HEAD + half[None, :]
    past = (positions < start)[:, None]
    key_1 = tl.load(keys + cached, mask=past, other=0.0).to(tl.float32)
    key_2 = tl.load(keys + cached + HALF, mask=past, other=0.0).to(tl.float32)
    value_1 = tl.load(values + cached, mask=past, other=0.0).to(tl.float32)
    value_2 = tl.load(values + cached + HALF, mask=past, other=0.0).to(tl.float32)
    # A group that is no power of two computes its last head more than once.
    queries = (head * GROUP + tl.minimum(group, GROUP - 1))[:, None] * HEAD + half[None, :]
    new_key = (HEADS + head) * HEAD + half[None, :]
    query_norm_1, query_norm_2 = tl.load(qk_norm + queries), tl.load(qk_norm + queries + HALF)
    key_norm_1, key_norm_2 = tl.load(qk_norm + new_key), tl.load(qk_norm + new_key + HALF)
    for step in tl.static_range(COUNT):
        position = start + step
        source = qkv + (row * COUNT + step) * (HEADS + 2 * KV_HEADS) * HEAD
        angle_cos = tl.load(cos + position * HEAD + half).to(tl.float32)
        angle_sin = tl.load(sin + position * HEAD + HALF + half).to(tl.float32)
        if EARLY:
            gdc_wait()
        here = (positions == position)[:, None]
        new_1, new_2 = _rotated(source + new_key, key_norm_1, key_norm_2, angle_cos, angle_sin, eps, HALF)
        key_1, key_2 = tl.where(here, new_1, key_1), tl.where(here, new_2, key_2)
        new_value = source + (HEADS + KV_HEADS + head) * HEAD + half
        value_1 = tl.where(here, tl.load(new_value).to(tl.float32)[None, :], value_1)
        value_2 = tl.where(here, tl.load(new_value + HALF).to(tl.float32)[None, :], value_2)
        tl.store(keys + cached, key_1, mask=here)
        tl.store(keys + cached + HALF, key_2, mask=here)
        tl.store(values + cached, value_1, mask=here)
        tl.store(values + cached + HALF, value_2, mask=here)
        query_1, query_2 = _rotated(source + queries, query_norm_1, query_norm_2, angle_cos, angle_sin, eps, HALF)
        scores = tl.sum(query_1[:, None, :] * key_1[None, :, :] + query_2[:, None, :] * key_2[None, :, :], 2) * scale
        scores = tl.where((positions <= position)[None, :], scores, float("-inf"))
        shares = tl.exp(scores - tl.max(scores, 1)[:, None])
        shares /= tl.sum(shares, 1)[:, None]
        target = out + (row * COUNT + step) * HEADS * HEAD + queries
        tl.store(target, tl.sum(shares[:, :, None] * value_1[None, :, :], 1))
        tl.store(target + HALF, tl.sum(shares[:, :, None] * value_2[None, :, :], 1))


@triton.jit
def _rotated(at, norm_1, norm_2, angle_cos, angle_sin, eps, HALF: tl.constexpr):
    """The halves, float32 [heads, HALF], of normalised and rotated heads whose first halves stand at `at`."""
    first, second = tl.load(at).to(tl.float32), tl.load(at + HALF).to(tl.float32)
    scale = tl.rsqrt(tl.sum(first * first + second * second, 1) / (2 * HALF) + eps)[:, None]
    first *= scale * norm_1.to(tl.float32)
    second *= scale * norm_2.to(tl.float32)
    return first * angle_cos - second * angle_sin, second * angle_cos + first * angle_sin


@triton.jit
def draw(
    logits,
    floats,
    top_k,
    table,
    offsets,
    codes,
    chosen,
    book,
    top_k_stride,
    floats_stride,
    EARLY: tl.constexpr,
    BOOKS: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
):
    """The code of one row, and the input that it becomes."""
    row = tl.program_id(0)
    entries = tl.arange(0, BLOCK)
    temperature = tl.load(floats + row * floats_stride)
    top_p = tl.load(floats + row * floats_stride + 1)
    uniform = tl.load(floats + row * floats_stride + 1 + book)
    limit = tl.load(top_k + row * top_k_stride)
    offset = tl.load(offsets + book)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(logits + row * ENTRIES + entries, mask=entries < ENTRIES, other=float("-inf"))
    code = tl.argmax(value, 0)
    if temperature > 0:
        value = value / temperature
        # Integers in the order of the floats, so that the smallest that is kept can be found bit by bit.
        bits = value.to(tl.uint32, bitcast=True)
        order = tl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)
        share = tl.exp(value - tl.max(value, 0))
        if limit > 0:
            least = _least_kept(order, (entries < ENTRIES).to(tl.float32), tl.minimum(limit, ENTRIES).to(tl.float32))
            share = tl.where(order >= least, share, 0.0)
        if top_p < 1:
            least = _least_kept(order, share, top_p * tl.sum(share, 0))
            share = tl.where(order >= least, share, 0.0)
        cumulated = tl.cumsum(share, 0)
        passed = (share > 0) & (cumulated > uniform * tl.max(cumulated, 0))
        last = tl.max(tl.where(share > 0, entries, 0), 0)
        code = tl.min(tl.where(passed, entries, last), 0)
    tl.store(codes + row * BOOKS + book, code.to(tl.int64))
    columns = tl.arange(0, SIZE_BLOCK)
    source = table + (offset + code) * SIZE + columns
    tl.store(chosen + row * SIZE + columns, tl.load(source, mask=columns < SIZE), mask=columns < SIZE)


@triton.jit
def _least_kept(order, mass, goal):
    """The largest integer such that the entries not below it have at least `goal` of the mass, two bits at a time."""
    least = tl.zeros((), tl.uint32)
    for shift in range(30, -1, -2):
        trials = least + (tl.arange(0, 4).to(tl.uint32) << shift)
        above = tl.sum(tl.where(order[:, None] >= trials[None, :], mass[:, None], 0.0), 0)
        least += (tl.sum((above >= goal).to(tl.uint32), 0) - 1) << shift
    return least


@triton.jit
def finish(
    codes,
    slots,
    text_ids,
    code_table,
    offsets,
    text_table,
    slot_inputs,
    frames,
    slots_stride,
    text_ids_stride,
    EARLY: tl.constexpr,
    BOOKS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some columns of one row's next input, and its codes as they leave."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    total = tl.zeros((BLOCK,), tl.float32)
    for book in tl.static_range(BOOKS):
        entry = tl.load(offsets + book) + tl.load(codes + row * BOOKS + book)
        total += tl.load(code_table + entry * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    text_id = tl.load(text_ids + row * text_ids_stride).to(tl.int64)
    total += tl.load(text_table + text_id * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    tl.store(slot_inputs + slot * SIZE + columns, total, mask=inside)
    if tl.program_id(1) == 0:
        books = row * BOOKS + tl.arange(0, BOOKS)
        tl.store(frames + books, tl.load(codes + books).to(tl.int16))
