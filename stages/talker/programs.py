"""The Triton programs that `kernels` launches; the matrix product is in Gluon, Triton's own language below it.

With EARLY a launch starts when the programs of the one in front have ended, before what they wrote is to be seen
(programmatic dependent launch): what stands before the wait reads nothing that the launch in front writes. It does not
start while they still run: its programs would then crowd onto the multiprocessors that have none of theirs.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_wait

DEPTH: tl.constexpr = tl.constexpr(64)
"""Inputs that a warp takes in one go."""
_PIECE: tl.constexpr = tl.constexpr(1024)
"""Bytes of weights that one thread brings into the L2 cache at once."""
_BRING: tl.constexpr = tl.constexpr(
    "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], 1024; mov.b32 $0, 0; }"
)
_WAIT: tl.constexpr = tl.constexpr("griddepcontrol.wait; mov.b32 $0, $1;")


@gluon.jit
def product(
    x,
    weight,
    out,
    ahead,
    ahead_bytes,
    rows,
    columns,
    x_stride,
    goes,
    eps,
    INNER: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """A block of out [rows, columns] = x · weightᵀ. NORM divides a row by its root mean square, behind the product.

    The inputs are split among SPLIT warps for each 16 rows. The weights are on their way into shared memory before the
    wait; `x` goes from the L2 cache straight into the registers that the tensor cores read, two goes ahead. Both
    take the inputs in the same order, in which a thread's 8 are neighbours.
    """
    WARPS: tl.constexpr = SPLIT * ROWS // 16
    SUMS: tl.constexpr = gl.NVMMADistributedLayout([2, 0], [SPLIT, ROWS // 16, 1], [1, 16, 8])
    LEFT: tl.constexpr = gl.DotOperandLayout(0, SUMS, 8)
    RIGHT: tl.constexpr = gl.DotOperandLayout(1, SUMS, 8)
    COPY: tl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 4, 8], [SPLIT, ROWS // 16, 1], [2, 1, 0])
    OUT: tl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [WARPS, 1], [1, 0])
    SHARED: tl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [2, 1, 0])
    GOES: tl.constexpr = INNER // (SPLIT * DEPTH)

    first_row, first_column = gl.program_id(1) * ROWS, gl.program_id(0) * COLUMNS
    slab = gl.allocate_shared_memory(weight.dtype.element_ty, [GOES, SPLIT, COLUMNS, DEPTH], SHARED)
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(2, COPY)))
    weight_at = weight + column[None, :, None] * INNER + _inputs(INNER, SPLIT, COPY)
    for go in range(goes):  # no more code than must be: each launch finds the instruction cache full of others'
        async_copy.async_copy_global_to_shared(slab.index(go), weight_at + go * DEPTH)
    async_copy.commit_group()
    if EARLY:
        _bring_and_wait(ahead, ahead_bytes, WARPS)

    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, LEFT)))
    x_at = x + row[None, :, None] * x_stride + _inputs(INNER, SPLIT, LEFT)
    row = row[None, :, None]
    left = gl.load(x_at, mask=row < rows, other=0.0)
    after = gl.load(x_at + DEPTH, mask=row < gl.where(goes > 1, rows, 0), other=0.0)
    sums = gl.zeros([SPLIT, ROWS, COLUMNS], gl.float32, SUMS)
    squares = gl.zeros([SPLIT, ROWS], gl.float32, gl.SliceLayout(2, LEFT))
    async_copy.wait_group(0)
    for go in range(goes):
        later = gl.load(x_at + (go + 2) * DEPTH, mask=row < gl.where(go + 2 < goes, rows, 0), other=0.0)
        sums = mma_v2(left, slab.index(go).permute([0, 2, 1]).load(RIGHT), sums)
        if NORM:
            squares += gl.sum(left.to(gl.float32) * left.to(gl.float32), 2)
        left, after = after, later

    total = gl.convert_layout(gl.sum(sums, 0), OUT)
    if NORM:
        square = gl.convert_layout(gl.sum(squares, 0), gl.SliceLayout(1, OUT))
        total *= gl.rsqrt(square / INNER + eps)[:, None]
    if GATED:
        _store_gated(total, out, first_row, first_column, rows, columns, ROWS, COLUMNS, WARPS)
    else:
        row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))[:, None]
        column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))[None, :]
        out_at = out + row * columns + column
        if ADD:
            total += gl.load(out_at, mask=row < rows, other=0.0).to(gl.float32)
        gl.store(out_at, total.to(out.dtype.element_ty), mask=row < rows)


@gluon.jit
def _inputs(INNER: tl.constexpr, SPLIT: tl.constexpr, LAYOUT: tl.constexpr):
    """The inputs of the first go, [SPLIT, 1, DEPTH]: each warp's part of them begins with its own."""
    part = gl.arange(0, SPLIT, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    k = gl.arange(0, DEPTH, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    return part[:, None, None] * (INNER // SPLIT) + k[None, None, :]


@gluon.jit
def _bring_and_wait(ahead, ahead_bytes, WARPS: tl.constexpr):
    """Send this program's share of weights on its way from memory into the L2 cache; wait for the launch in front."""
    THREADS: tl.constexpr = 32 * WARPS
    program = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    pieces = ahead_bytes // _PIECE
    share = gl.cdiv(pieces, gl.num_programs(0) * gl.num_programs(1))
    thread = gl.arange(0, THREADS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    for first in range(0, share, THREADS):
        piece = program * share + first + thread
        wanted = ((first + thread < share) & (piece < pieces)).to(gl.int32)
        at = ahead.to(gl.pointer_type(gl.int8)) + piece * _PIECE
        gl.inline_asm_elementwise(_BRING, "=r,l,r", [at, wanted], dtype=gl.int32, is_pure=False, pack=1)
    gl.inline_asm_elementwise(_WAIT, "=r,r", [thread], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _store_gated(
    total, out, first_row, first_column, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr
):
    """silu(gate) · up of even and odd columns."""
    OUT: tl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [WARPS, 1], [1, 0])
    gate, up = gl.split(gl.reshape(total, [ROWS, COLUMNS // 2, 2]))
    gated = gl.convert_layout(gate * up / (1.0 + gl.exp(-gate)), OUT)
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))[:, None]
    column = first_column // 2 + gl.arange(0, COLUMNS // 2, gl.SliceLayout(0, OUT))[None, :]
    gl.store(out + row * (columns // 2) + column, gated.to(out.dtype.element_ty), mask=row < rows)


@gluon.jit
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
    HALF: tl.constexpr,
    POSITIONS: tl.constexpr,
    CACHED: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Some key/value heads of one row, one a warp. A head is held as two halves, which rotation mixes.

    POSITIONS are looked at, of CACHED that have room in the cache.
    """
    PAST: tl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 4, 8], [WARPS, 1, 1], [2, 1, 0])
    VECTORS: tl.constexpr = gl.SliceLayout(1, PAST)
    SCORES: tl.constexpr = gl.SliceLayout(2, PAST)
    HEAD: tl.constexpr = 2 * HALF
    HEADS: tl.constexpr = KV_HEADS * GROUP
    row = gl.program_id(0)
    head = (gl.program_id(1) * WARPS + gl.arange(0, WARPS, gl.SliceLayout(1, VECTORS)))[:, None]
    half = gl.arange(0, HALF, gl.SliceLayout(0, VECTORS))[None, :]
    positions = gl.arange(0, POSITIONS, gl.SliceLayout(0, SCORES))[None, :]
    cached = ((row * KV_HEADS + head) * CACHED * HEAD + half)[:, None, :] + (positions * HEAD)[:, :, None]
    past = (positions < start)[:, :, None]
    key_1 = gl.load(keys + cached, mask=past, other=0.0).to(gl.float32)
    key_2 = gl.load(keys + cached + HALF, mask=past, other=0.0).to(gl.float32)
    value_1 = gl.load(values + cached, mask=past, other=0.0).to(gl.float32)
    value_2 = gl.load(values + cached + HALF, mask=past, other=0.0).to(gl.float32)
    if EARLY:
        gl.inline_asm_elementwise(_WAIT, "=r,r", [head], dtype=gl.int32, is_pure=False, pack=1)
    for step in gl.static_range(COUNT):
        position = start + step
        source = qkv + (row * COUNT + step) * (HEADS + 2 * KV_HEADS) * HEAD
        angle_cos = gl.load(cos + position * HEAD + half).to(gl.float32)
        angle_sin = gl.load(sin + position * HEAD + HALF + half).to(gl.float32)
        here = (positions == position)[:, :, None]
        new_1, new_2 = _rotated(source, qk_norm, (HEADS + head) * HEAD + half, angle_cos, angle_sin, eps, HALF)
        new_value = source + (HEADS + KV_HEADS + head) * HEAD + half
        key_1, key_2 = gl.where(here, new_1[:, None, :], key_1), gl.where(here, new_2[:, None, :], key_2)
        value_1 = gl.where(here, gl.load(new_value).to(gl.float32)[:, None, :], value_1)
        value_2 = gl.where(here, gl.load(new_value + HALF).to(gl.float32)[:, None, :], value_2)
        gl.store(keys + cached, key_1.to(keys.dtype.element_ty), mask=here)
        gl.store(keys + cached + HALF, key_2.to(keys.dtype.element_ty), mask=here)
        gl.store(values + cached, value_1.to(keys.dtype.element_ty), mask=here)
        gl.store(values + cached + HALF, value_2.to(keys.dtype.element_ty), mask=here)
        for member in range(GROUP):
            at = (head * GROUP + member) * HEAD + half
            query_1, query_2 = _rotated(source, qk_norm, at, angle_cos, angle_sin, eps, HALF)
            scores = gl.sum(query_1[:, None, :] * key_1 + query_2[:, None, :] * key_2, 2) * scale
            scores = gl.where(positions <= position, scores, float("-inf"))
            shares = gl.exp(scores - gl.max(scores, 1)[:, None])
            shares = (shares / gl.sum(shares, 1)[:, None])[:, :, None]
            target = out + (row * COUNT + step) * HEADS * HEAD + at
            gl.store(target, gl.sum(shares * value_1, 1).to(out.dtype.element_ty))
            gl.store(target + HALF, gl.sum(shares * value_2, 1).to(out.dtype.element_ty))


@gluon.jit
def _rotated(source, norm, at, angle_cos, angle_sin, eps, HALF: tl.constexpr):
    """The halves, float32 [heads, HALF], of normalised and rotated heads whose first halves stand at `at`."""
    first, second = gl.load(source + at).to(gl.float32), gl.load(source + at + HALF).to(gl.float32)
    scale = gl.rsqrt(gl.sum(first * first + second * second, 1) / (2 * HALF) + eps)[:, None]
    first *= scale * gl.load(norm + at).to(gl.float32)
    second *= scale * gl.load(norm + at + HALF).to(gl.float32)
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
    """A bound: the entries not below it are the fewest largest ones that have at least `goal` of the mass."""
    quarters = tl.arange(0, 4)
    least, most = tl.min(order, 0).to(tl.int64), tl.max(order, 0).to(tl.int64)
    while least < most:
        step = (most - least) // 4 + 1
        trials = (least + quarters * step).to(tl.uint32)
        above = tl.sum(tl.where(order[:, None] >= trials[None, :], mass[:, None], 0.0), 0)
        reached = tl.max(tl.where(above >= goal, quarters, 0), 0)
        exactly = tl.max((above == goal).to(tl.int32), 0)
        least += reached * step
        most = tl.where(exactly > 0, least, tl.minimum(most, least + step - 1))
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
