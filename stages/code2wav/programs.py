"""Triton kernels of the codec decoder on a GPU: channels last, bias, residual, norm and activation in the products.

A convolution's input lies in a buffer [streams, context + T, channels], its left context in front. A row and the rows
below it that its other taps read are then so many runs of one flat row: every convolution is a matrix product whose
left side is read in place. The same arithmetic as the modules of `layers` and `transformer`, which are the reference.
"""

import triton
import triton.language as tl

NONE, GELU, SWIGLU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a product's epilogue may apply to bias and product; SWIGLU: to gate and up in alternate columns."""
FULL_SCALE = tl.constexpr(32_767)


@triton.jit(do_not_specialize=["rows", "length"])
def product(
    x,
    weight,
    bias,
    residual,
    raw,
    out,
    frequency,
    height,
    rows,
    length,
    columns,
    depth,
    taps,
    tap_stride,
    row_stride,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    ACTIVATION: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Rows [streams · length] of x times weight [taps · depth, columns], of each tile the epilogue's results.

    `raw` and `out` may be None: the sum of product, bias and residual, and, where `frequency` is given, its SnakeBeta.
    `*_stride` lead from stream to stream. With `eps` each row of x is RMS-normalised (its weight is part of `weight`).
    """
    tiles_n = tl.cdiv(columns, BLOCK_N)
    m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(m, rows - 1)
    stream, at = row // length, row % length
    left = x + (stream * x_stride + at * row_stride)[:, None] + k[None, :]
    right = weight + k[:, None] * columns + n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    steps = tl.cdiv(depth, BLOCK_K)
    for step in range(taps * steps):
        tap, first = step // steps, step % steps * BLOCK_K
        a_at = left + tap * tap_stride + first
        b_at = right + (tap * depth + first) * columns
        a = tl.load(a_at) if EVEN_K else tl.load(a_at, mask=k[None, :] < depth - first, other=0.0)
        if EVEN_K and EVEN_N:
            b = tl.load(b_at)
        else:
            b = tl.load(b_at, mask=(k[:, None] < depth - first) & (n[None, :] < columns), other=0.0)
        if eps is not None:
            squares += tl.sum(a.to(tl.float32) * a.to(tl.float32), 1)
        total = tl.dot(a.to(b.dtype), b, total, input_precision="tf32x3")
    if eps is not None:
        total *= tl.rsqrt(squares / depth + eps)[:, None]
    if bias is not None:
        total += tl.load(bias + n, mask=n < columns, other=0.0)[None, :]
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    if residual is not None:
        added = residual + (stream * residual_stride + at * columns)[:, None] + n[None, :]
        total += tl.load(added, mask=inside, other=0.0).to(tl.float32)
    if raw is not None:
        tl.store(raw + (row * columns)[:, None] + n[None, :], total, mask=inside)
    if out is not None:
        if ACTIVATION == SWIGLU:
            gate, up = tl.split(tl.reshape(total, (BLOCK_M, BLOCK_N // 2, 2)))
            half = tl.program_id(0) % tiles_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
            target = out + (stream * out_stride + at * (columns // 2))[:, None] + half[None, :]
            shown = (m < rows)[:, None] & (half < columns // 2)[None, :]
            tl.store(target, gate * tl.sigmoid(gate) * up, mask=shown)
        else:
            if ACTIVATION == GELU:
                total = 0.5 * total * (1 + tl.erf(total * 0.7071067811865476))
            if frequency is not None:
                total = _snake(
                    total,
                    tl.load(frequency + n, mask=n < columns, other=0.0)[None, :],
                    tl.load(height + n, mask=n < columns, other=0.0)[None, :],
                )
            tl.store(out + (stream * out_stride + at * columns)[:, None] + n[None, :], total, mask=inside)


@triton.jit(do_not_specialize=["rows", "length"])
def residual_unit(
    x,
    dilated,
    dilated_bias,
    inner_frequency,
    inner_height,
    pointwise,
    pointwise_bias,
    frequency,
    height,
    added,
    raw,
    out,
    rows,
    length,
    channels,
    tap_stride,
    x_stride,
    out_stride,
    TAPS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A whole residual unit of so few channels that a program holds them all: WIDE and, unless 0, NARROW behind them.

    Dilated convolution of `x`, SnakeBeta, pointwise product, plus `added`: to `raw`, and through SnakeBeta to `out`.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(m, rows - 1)
    stream, at = row // length, row % length
    k = tl.arange(0, BLOCK_K)
    wide = tl.arange(0, WIDE)
    left = x + (stream * x_stride + at * channels)[:, None] + k[None, :]
    right = dilated + (k * channels)[:, None] + wide[None, :]
    total = tl.zeros((BLOCK_M, WIDE), tl.float32)
    steps = tl.cdiv(channels, BLOCK_K)
    if NARROW > 0:
        narrow = WIDE + tl.arange(0, NARROW)
        right_narrow = dilated + (k * channels)[:, None] + narrow[None, :]
        total_narrow = tl.zeros((BLOCK_M, NARROW), tl.float32)
    for step in range(TAPS * steps):
        tap, first = step // steps, step % steps * BLOCK_K
        b_at = (tap * channels + first) * channels
        if EVEN:
            a, b = tl.load(left + tap * tap_stride + first), tl.load(right + b_at)
        else:
            a = tl.load(left + tap * tap_stride + first, mask=k[None, :] < channels - first, other=0.0)
            b = tl.load(right + b_at, mask=(k < channels - first)[:, None] & (wide < channels)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32x3")
        if NARROW > 0:
            total_narrow = tl.dot(a, tl.load(right_narrow + b_at), total_narrow, input_precision="tf32x3")
    hidden = _biased_snake(total, dilated_bias, inner_frequency, inner_height, wide, channels).to(x.dtype.element_ty)
    total = tl.dot(hidden, _square(pointwise, wide, wide, channels), input_precision="tf32x3")
    if NARROW > 0:
        inner = _biased_snake(total_narrow, dilated_bias, inner_frequency, inner_height, narrow, channels)
        inner = inner.to(x.dtype.element_ty)
        total_narrow = tl.dot(hidden, _square(pointwise, wide, narrow, channels), input_precision="tf32x3")
        total_narrow = tl.dot(
            inner, _square(pointwise, narrow, narrow, channels), total_narrow, input_precision="tf32x3"
        )
        total = tl.dot(inner, _square(pointwise, narrow, wide, channels), total, input_precision="tf32x3")
        _add_and_store(
            total_narrow,
            pointwise_bias,
            frequency,
            height,
            added,
            raw,
            out,
            m,
            row,
            stream,
            at,
            narrow,
            rows,
            channels,
            out_stride,
        )
    _add_and_store(
        total, pointwise_bias, frequency, height, added, raw, out, m, row, stream, at, wide, rows, channels, out_stride
    )


@triton.jit
def _square(weight, k, n, channels):
    """A part of a weight [channels, channels]."""
    inside = (k < channels)[:, None] & (n < channels)[None, :]
    return tl.load(weight + (k * channels)[:, None] + n[None, :], mask=inside, other=0.0)


@triton.jit
def _biased_snake(total, bias, frequency, height, n, channels):
    """SnakeBeta of total plus bias, in the columns n."""
    inside = n < channels
    total += tl.load(bias + n, mask=inside, other=0.0)[None, :]
    frequencies = tl.load(frequency + n, mask=inside, other=0.0)[None, :]
    return _snake(total, frequencies, tl.load(height + n, mask=inside, other=0.0)[None, :])


@triton.jit
def _add_and_store(total, bias, frequency, height, added, raw, out, m, row, stream, at, n, rows, channels, out_stride):
    """The end of a residual unit, in the columns n."""
    inside = (m < rows)[:, None] & (n < channels)[None, :]
    flat = (row * channels)[:, None] + n[None, :]
    total += tl.load(bias + n, mask=n < channels, other=0.0)[None, :]
    total += tl.load(added + flat, mask=inside, other=0.0).to(tl.float32)
    if raw is not None:
        tl.store(raw + flat, total, mask=inside)
    frequencies = tl.load(frequency + n, mask=n < channels, other=0.0)[None, :]
    total = _snake(total, frequencies, tl.load(height + n, mask=n < channels, other=0.0)[None, :])
    tl.store(out + (stream * out_stride + at * channels)[:, None] + n[None, :], total, mask=inside)


@triton.jit
def _snake(x, frequency, height):
    """x + sin²(x · frequency) · height. sin² repeats after π, and a polynomial does for what remains."""
    angle = x * frequency
    turns = tl.floor(angle * 0.3183098861837907 + 0.5)
    # π in three parts, the first two so short that their products with `turns` are exact.
    angle = angle - turns * 3.140625 - turns * 9.67502593994140625e-4 - turns * 1.509957990978376432e-7
    square = angle * angle
    series = -0.0001981069071916863 + square * 2.6083159809786594e-06
    series = -0.16666659712791443 + square * (0.00833307858556509 + square * series)
    sine = angle + angle * square * series
    return x + height * sine * sine


@triton.jit(do_not_specialize=["frames"])
def sum_codes(codes, table, out, frames, width, entries, out_stride, BOOKS: tl.constexpr, BLOCK: tl.constexpr):
    """The summed table rows of a frame's codes: [streams, T, BOOKS] → rows `width` wide in a buffer."""
    frame = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros((BLOCK,), tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(codes + frame * BOOKS + book).to(tl.int32)
        total += tl.load(table + (book * entries + code) * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + frame // frames * out_stride + frame % frames * width + columns, total, mask=inside)


@triton.jit(do_not_specialize=["streams", "frames"])
def move_contexts(buffers, states, slots, blocks, streams, frames, width, FILL: tl.constexpr, BLOCK: tl.constexpr):
    """The contexts of all layers, between the slots' states and the buffers' beginnings (FILL) or ends.

    `blocks` int32 [n, 5]: where a block's layer begins in a slot's state; the elements of a frame of all layers before
    it, of a frame of itself, and of its context; where in that the block begins.
    """
    stream, block = tl.program_id(0), tl.program_id(1)
    begin, before, frame = (
        tl.load(blocks + 5 * block),
        tl.load(blocks + 5 * block + 1),
        tl.load(blocks + 5 * block + 2),
    )
    size, first = tl.load(blocks + 5 * block + 3), tl.load(blocks + 5 * block + 4)
    at = first + tl.arange(0, BLOCK)
    inside = at < size
    buffer = buffers + streams * (begin + frames * before).to(tl.int64) + stream * (size + frames * frame) + at
    state = states + tl.load(slots + stream).to(tl.int64) * width + begin + at
    if FILL:
        tl.store(buffer, tl.load(state, mask=inside), mask=inside)
    else:
        tl.store(state, tl.load(buffer + frames * frame, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["length"])
def depthwise_norm(
    x, weight, bias, gain, shift, out, length, channels, x_stride, eps, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    """A depthwise convolution and LayerNorm, a row a program. `weight` is [TAPS, channels]."""
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < channels
    at = x + row // length * x_stride + row % length * channels + c
    total = tl.load(bias + c, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        value = tl.load(at + tap * channels, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + tap * channels + c, mask=inside, other=0.0)
    total = tl.where(inside, total - tl.sum(total, 0) / channels, 0.0)
    total *= tl.rsqrt(tl.sum(total * total, 0) / channels + eps)
    normed = total * tl.load(gain + c, mask=inside, other=0.0) + tl.load(shift + c, mask=inside, other=0.0)
    tl.store(out + row * channels + c, normed, mask=inside)


@triton.jit(do_not_specialize=["rows", "length"])
def to_samples(
    x, weight, bias, samples, rows, length, x_stride, row_stride, depth, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The last convolution, to one channel, clamped to -1 … 1; as int16 where `samples` are."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    row = tl.minimum(m, rows - 1)
    left = x + (row // length * x_stride + row % length * row_stride)[:, None] + k[None, :]
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


@triton.jit(do_not_specialize=["frames"])
def attend(
    qkv,
    cache,
    rotation,
    slots,
    positions,
    out,
    frames,
    scale,
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
    step writes is nothing that it reads. `rotation` are the angles of position 1. A head is held as two halves.
    """
    stream, head = tl.program_id(0), tl.program_id(1)
    HEAD: tl.constexpr = 2 * HALF
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // GROUP
    start = tl.load(positions + stream)
    keys = cache + (tl.load(slots + stream).to(tl.int64) * 2 * KV_HEADS + kv_head) * RING * HEAD
    values = keys + KV_HEADS * RING * HEAD
    h, t = tl.arange(0, BLOCK_H)[None, :], tl.arange(0, BLOCK_T)
    new = (t < frames)[:, None] & (h < HALF)
    source = qkv + ((stream * frames + t) * WIDTH)[:, None] + h
    angle = (start + t).to(tl.float32)[:, None] * tl.load(rotation + h, mask=h < HALF, other=0.0)
    cos, sin = tl.cos(angle), tl.sin(angle)
    query_1, query_2 = _rotated(source + head * HEAD, new, cos, sin, HALF)
    key_1, key_2 = _rotated(source + (HEADS + kv_head) * HEAD, new, cos, sin, HALF)
    value_at = source + (HEADS + KV_HEADS + kv_head) * HEAD
    value_1, value_2 = tl.load(value_at, mask=new, other=0.0), tl.load(value_at + HALF, mask=new, other=0.0)
    kept = ((start + t) % RING * HEAD)[:, None] + h
    # The heads of a group share a key and all write it.
    tl.store(keys + kept, key_1, mask=new)
    tl.store(keys + kept + HALF, key_2, mask=new)
    tl.store(values + kept, value_1, mask=new)
    tl.store(values + kept + HALF, value_2, mask=new)

    past = start - WINDOW + 1 + tl.arange(0, BLOCK_W)
    known = (past >= 0) & (past < start)
    old = known[:, None] & (h < HALF)
    past_at = (tl.where(known, past, 0) % RING * HEAD)[:, None] + h
    old_1, old_2 = tl.load(keys + past_at, mask=old, other=0.0), tl.load(keys + past_at + HALF, mask=old, other=0.0)
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
    old_share, new_share = old_share.to(value_1.dtype), new_share.to(value_1.dtype)
    past_value = values + past_at
    mixed_1 = tl.dot(old_share, tl.load(past_value, mask=old, other=0.0), input_precision="tf32x3")
    mixed_2 = tl.dot(old_share, tl.load(past_value + HALF, mask=old, other=0.0), input_precision="tf32x3")
    mixed_1 = tl.dot(new_share, value_1, mixed_1, input_precision="tf32x3") / whole
    mixed_2 = tl.dot(new_share, value_2, mixed_2, input_precision="tf32x3") / whole
    target = out + ((stream * frames + t) * HEADS + head)[:, None] * HEAD + h
    tl.store(target, mixed_1, mask=new)
    tl.store(target + HALF, mixed_2, mask=new)


@triton.jit
def _rotated(at, inside, cos, sin, HALF: tl.constexpr):
    """The rotated halves of the heads whose first halves stand at `at`, in their dtype."""
    first = tl.load(at, mask=inside, other=0.0)
    second = tl.load(at + HALF, mask=inside, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    return (a * cos - b * sin).to(first.dtype), (b * cos + a * sin).to(first.dtype)
