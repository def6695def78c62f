"""The Triton program that `kernels` launches behind the frame kernel.

A launch starts when the programs of the one in front have ended, before what they wrote is to be seen (programmatic
dependent launch): what stands before the wait reads nothing that the launch in front writes.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def finish(
    codes,
    slots,
    text_ids,
    makes_one,
    code_table,
    offsets,
    text_table,
    slot_inputs,
    frames,
    begun,
    stride,
    end,
    eos_id,
    EARLY: tl.constexpr,
    BOOKS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some columns of one row's next input, its codes as they leave and the id with which the frame begins: for `end`,
    `eos_id`. `stride` is that of what rows are told.
    """
    if EARLY:
        gdc_wait()
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    total = tl.zeros((BLOCK,), tl.float32)
    for book in tl.static_range(BOOKS):
        entry = tl.load(offsets + book) + tl.load(codes + row * BOOKS + book)
        total += tl.load(code_table + entry * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    text_id = tl.load(text_ids + row * stride).to(tl.int64)
    total += tl.load(text_table + text_id * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + row * stride).to(tl.int64)
    tl.store(slot_inputs + slot * SIZE + columns, total, mask=inside)
    if tl.program_id(1) == 0:
        books = row * BOOKS + tl.arange(0, BOOKS)
        tl.store(frames + books, tl.load(codes + books).to(tl.int16))
        first = tl.load(codes + row * BOOKS)
        tl.store(begun + row, tl.where(first == end, eos_id, first))
        tl.store(begun + tl.num_programs(0) + row, tl.load(makes_one + row * stride).to(tl.int64))
