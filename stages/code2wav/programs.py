"""What the codec decoder computes on a GPU besides matrix products. `product_programs` says what rows are."""

import triton
import triton.language as tl

from .product_programs import await_input, place

FULL_SCALE = tl.constexpr(32_767)


@triton.jit
def sum_codes(
    codes,
    table,
    out,
    owners,
    width,
    entries,
    out_context,
    EARLY: tl.constexpr,
    BOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The summed table rows of each frame's codes: [frames, BOOKS] → rows `width` wide."""
    await_input(EARLY)
    frame = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros((BLOCK,), tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(codes + frame * BOOKS + book).to(tl.int32)
        total += tl.load(table + (book * entries + code) * width + columns, mask=inside, other=0.0).to(tl.float32)
    owner = tl.load(owners + frame)
    tl.store(out + frame * width + (owner + 1) * out_context + columns, total, mask=inside)


@triton.jit(do_not_specialize=["frames"])
def move_contexts(
    buffers,
    states,
    slots,
    begins,
    blocks,
    frames,
    width,
    EARLY: tl.constexpr,
    FILL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The contexts of all layers, from the slots' states to the fronts of the streams' rows (FILL), or from their ends.

    `blocks` int32 [n, 5]: where a block's layer begins in a slot's state; the elements of a frame of all layers before
    it, of a frame of itself, and of its context; where in that the block begins.
    """
    await_input(EARLY)
    stream, block = tl.program_id(0), tl.program_id(1)
    first_frame = tl.load(begins + stream)
    count = tl.load(begins + stream + 1) - first_frame
    begin, before = tl.load(blocks + 5 * block), tl.load(blocks + 5 * block + 1)
    frame, size = tl.load(blocks + 5 * block + 2), tl.load(blocks + 5 * block + 3)
    at = tl.load(blocks + 5 * block + 4) + tl.arange(0, BLOCK)
    inside = at < tl.where(count > 0, size, 0)
    buffer = buffers + frames * (begin + before).to(tl.int64) + stream * size + first_frame * frame + at
    state = states + tl.load(slots + stream).to(tl.int64) * width + begin + at
    if FILL:
        tl.store(buffer, tl.load(state, mask=inside), mask=inside)
    else:
        tl.store(state, tl.load(buffer + count * frame, mask=inside), mask=inside)


@triton.jit
def depthwise_norm(
    x,
    weight,
    bias,
    gain,
    shift,
    out,
    owners,
    per_frame,
    channels,
    x_context,
    eps,
    EARLY: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A depthwise convolution and LayerNorm, a row a program. `weight` is [TAPS, channels]."""
    await_input(EARLY)
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < channels
    at = x + row * channels + tl.load(owners + row // per_frame) * x_context + c
    total = tl.load(bias + c, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        value = tl.load(at + tap * channels, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + tap * channels + c, mask=inside, other=0.0)
    total = tl.where(inside, total - tl.sum(total, 0) / channels, 0.0)
    total *= tl.rsqrt(tl.sum(total * total, 0) / channels + eps)
    normed = total * tl.load(gain + c, mask=inside, other=0.0) + tl.load(shift + c, mask=inside, other=0.0)
    tl.store(out + row * channels + c, normed, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def to_samples(
    x,
    weight,
    bias,
    samples,
    owners,
    rows,
    per_frame,
    x_context,
    row_stride,
    depth,
    EARLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The last convolution, to one channel, clamped to -1 … 1; as int16 where `samples` are."""
    await_input(EARLY)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    row, owner = place(m, rows, per_frame, owners)
    left = x + (row * row_stride + owner * x_context)[:, None] + k[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for first in range(0, depth, BLOCK_K):
        inside = k < depth - first
        value = tl.load(left + first, mask=inside[None, :], other=0.0).to(tl.float32)
        total += value * tl.load(weight + first + k, mask=inside, other=0.0)[None, :]
    sample = tl.sum(total, 1) + tl.load(bias)
    sample = tl.minimum(tl.maximum(sample, -1.0), 1.0)
    if samples.dtype.element_ty == tl.int16:
        scaled = sample * FULL_SCALE
        # Adding and subtracting 1.5 · 2²³ rounds to nearest, ties to even.
        sample = (scaled + 12582912.0) - 12582912.0
    tl.store(samples + m, sample.to(samples.dtype.element_ty), mask=m < rows)


@triton.jit
def attend(
    qkv,
    cache,
    rotation,
    slots,
    positions,
    begins,
    out,
    scale,
    EARLY: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Rotate, attend within the window, and keep the new keys and values: one head of one stream a program.

    `cache` is [slots, 2, KV_HEADS, RING, head]: position p lies at p mod RING, and RING is large enough that what a
    step writes is nothing that it reads. `rotation` are the angles of position 1. `begins` are the frames at which the
    streams begin in the batch, and at which the last one ends. A head is held as two halves.
    """
    await_input(EARLY)
    stream, head = tl.program_id(0), tl.program_id(1)
    HEAD: tl.constexpr = 2 * HALF
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // GROUP
    first = tl.load(begins + stream)
    frames = tl.load(begins + stream + 1) - first
    if frames == 0:
        return
    start = tl.load(positions + stream)
    keys = cache + (tl.load(slots + stream).to(tl.int64) * 2 * KV_HEADS + kv_head) * RING * HEAD
    h, t = tl.arange(0, BLOCK_H)[None, :], tl.arange(0, BLOCK_T)
    past = start - WINDOW + 1 + tl.arange(0, BLOCK_W)
    known = (past >= 0) & (past < start)
    old = known[:, None] & (h < HALF)
    past_at = (tl.where(known, past, 0) % RING * HEAD)[:, None] + h
    old_1, old_2 = tl.load(keys + past_at, mask=old, other=0.0), tl.load(keys + past_at + HALF, mask=old, other=0.0)
    past_at += KV_HEADS * RING * HEAD
    value_1, value_2 = tl.load(keys + past_at, mask=old, other=0.0), tl.load(keys + past_at + HALF, mask=old, other=0.0)

    new = (t < frames)[:, None] & (h < HALF)
    source = qkv + ((first + t) * WIDTH)[:, None] + h
    angle = (start + t).to(tl.float32)[:, None] * tl.load(rotation + h, mask=h < HALF, other=0.0)
    cos, sin = tl.cos(angle), tl.sin(angle)
    query_1, query_2 = _rotated(source + head * HEAD, new, cos, sin, HALF)
    key_1, key_2 = _rotated(source + (HEADS + kv_head) * HEAD, new, cos, sin, HALF)
    new_at = source + (HEADS + KV_HEADS + kv_head) * HEAD
    new_1, new_2 = tl.load(new_at, mask=new, other=0.0), tl.load(new_at + HALF, mask=new, other=0.0)

    old_scores = tl.dot(query_1, tl.trans(old_1), input_precision="tf32x3")
    old_scores = tl.dot(query_2, tl.trans(old_2), old_scores, input_precision="tf32x3") * scale
    new_scores = tl.dot(query_1, tl.trans(key_1), input_precision="tf32x3")
    new_scores = tl.dot(query_2, tl.trans(key_2), new_scores, input_precision="tf32x3") * scale
    seen = known[None, :] & ((start + t)[:, None] - past[None, :] < WINDOW)
    old_scores = tl.where(seen, old_scores, float("-inf"))
    age = t[:, None] - t[None, :]
    new_scores = tl.where((age >= 0) & (age < WINDOW), new_scores, float("-inf"))
    most = tl.maximum(tl.max(old_scores, 1), tl.max(new_scores, 1))[:, None]
    old_share, new_share = tl.exp(old_scores - most), tl.exp(new_scores - most)
    whole = (tl.sum(old_share, 1) + tl.sum(new_share, 1))[:, None]
    old_share, new_share = old_share.to(new_1.dtype), new_share.to(new_1.dtype)
    mixed_1 = tl.dot(old_share, value_1, input_precision="tf32x3")
    mixed_1 = tl.dot(new_share, new_1, mixed_1, input_precision="tf32x3") / whole
    mixed_2 = tl.dot(old_share, value_2, input_precision="tf32x3")
    mixed_2 = tl.dot(new_share, new_2, mixed_2, input_precision="tf32x3") / whole
    target = out + ((first + t) * HEADS + head)[:, None] * HEAD + h
    tl.store(target, mixed_1, mask=new)
    tl.store(target + HALF, mixed_2, mask=new)

    # The heads of a group share a key and a value, and all write them.
    kept = keys + ((start + t) % RING * HEAD)[:, None] + h
    tl.store(kept, key_1, mask=new)
    tl.store(kept + HALF, key_2, mask=new)
    tl.store(kept + KV_HEADS * RING * HEAD, new_1, mask=new)
    tl.store(kept + KV_HEADS * RING * HEAD + HALF, new_2, mask=new)


@triton.jit
def _rotated(at, inside, cos, sin, HALF: tl.constexpr):
    """The rotated halves of the heads whose first halves stand at `at`, in their dtype."""
    first = tl.load(at, mask=inside, other=0.0)
    second = tl.load(at + HALF, mask=inside, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    return (a * cos - b * sin).to(first.dtype), (b * cos + a * sin).to(first.dtype)
