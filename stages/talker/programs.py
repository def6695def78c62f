"""The Triton programs that `kernels` launches: what stands between the passes of the code predictor.

A launch starts when the programs of the one in front have ended, before what they wrote is to be seen (programmatic
dependent launch): what stands before the wait reads nothing that the launch in front writes.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def draw(
    logits,
    cut,
    noise,
    top_k,
    table,
    offsets,
    codes,
    chosen,
    book,
    stride,
    EARLY: tl.constexpr,
    BOOKS: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
):
    """The code of one row, and the input that it becomes. `stride` is that of `cut`, `noise` and `top_k`."""
    row = tl.program_id(0)
    entries = tl.arange(0, BLOCK)
    temperature, top_p = tl.load(cut + row * stride), tl.load(cut + row * stride + 1)
    uniform = tl.load(noise + row * stride + book)
    limit = tl.load(top_k + row * stride)
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
