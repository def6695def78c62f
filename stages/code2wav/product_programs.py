"""The codec decoder's matrix products on a GPU, in Triton: channels last, with all that comes before the next one.

A batch holds any number of frames of each of its streams, one stream after the other. What a layer makes of them is
rows [frames · per_frame, channels]; a convolution's input has its left context in front of each stream's rows, so that
the taps read whole rows in place. `owners` tells which stream of the batch a frame belongs to. `*_context` are the
elements of such a context, 0 where there is none. The modules of `layers` are the reference.

With EARLY a program may start before the launch in front of it has ended (programmatic dependent launch), and waits for
that before it touches memory. As every program of a batch does so, none runs ahead of a launch further back either.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NONE, GELU, SWIGLU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a product's epilogue may apply to bias and product; SWIGLU: to gate and up in alternate columns."""
MIN_BLOCK = tl.constexpr(16)
"""The least size of a side of a tensor core's product."""


@triton.jit(do_not_specialize=["rows"])
def product(
    x,
    weight,
    bias,
    added,
    raw,
    out,
    frequency,
    height,
    owners,
    rows,
    per_frame,
    columns,
    depth,
    taps,
    tap_stride,
    row_stride,
    x_context,
    added_context,
    out_context,
    eps,
    EARLY: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`rows` of x times weight [taps · depth, columns], and of each tile what `_finish` says.

    With `eps` each row of x is RMS-normalised; the norm's weight is a part of `weight`.
    """
    await_input(EARLY)
    tiles_n = tl.cdiv(columns, BLOCK_N)
    m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row, owner = place(m, rows, per_frame, owners)
    left = x + (row * row_stride + owner * x_context)[:, None]
    total, _, squares = _multiply(
        left, weight, n, n, columns, depth, taps, tap_stride,
        eps is not None, EVEN_K, EVEN_N, BLOCK_M, BLOCK_N, 0, BLOCK_K,
    )  # fmt: skip
    if eps is not None:
        total *= tl.rsqrt(squares / depth + eps)[:, None]
    _finish(
        total, bias, added, raw, out, frequency, height, m, owner, n, rows, columns, added_context, out_context,
        ACTIVATION,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def residual_unit(
    x,
    dilated,
    dilated_bias,
    inner_frequency,
    inner_height,
    pointwise,
    bias,
    frequency,
    height,
    added,
    raw,
    out,
    owners,
    rows,
    per_frame,
    channels,
    tap_stride,
    x_context,
    added_context,
    out_context,
    EARLY: tl.constexpr,
    TAPS: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A whole residual unit of so few channels that a tile holds them all: WIDE and, unless 0, NARROW behind them.

    Dilated convolution of `x`, SnakeBeta, pointwise product, plus `added`: to `raw`, and through SnakeBeta to `out`.
    """
    await_input(EARLY)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n, narrow = tl.arange(0, WIDE), WIDE + tl.arange(0, MIN_BLOCK if NARROW == 0 else NARROW)
    row, owner = place(m, rows, per_frame, owners)
    left = x + (row * channels + owner * x_context)[:, None]
    total, total_narrow, _ = _multiply(
        left, dilated, n, narrow, channels, channels, TAPS, tap_stride,
        False, EVEN_K, EVEN_N, BLOCK_M, WIDE, NARROW, BLOCK_K,
    )  # fmt: skip
    hidden = _biased_snake(total, dilated_bias, inner_frequency, inner_height, n, channels).to(x.dtype.element_ty)
    total = tl.dot(hidden, _square(pointwise, n, n, channels), input_precision="tf32x3")
    if NARROW > 0:
        inner = _biased_snake(total_narrow, dilated_bias, inner_frequency, inner_height, narrow, channels)
        inner = inner.to(x.dtype.element_ty)
        total_narrow = tl.dot(hidden, _square(pointwise, n, narrow, channels), input_precision="tf32x3")
        b = _square(pointwise, narrow, narrow, channels)
        total_narrow = tl.dot(inner, b, total_narrow, input_precision="tf32x3")
        total = tl.dot(inner, _square(pointwise, narrow, n, channels), total, input_precision="tf32x3")
        _finish(
            total_narrow, bias, added, raw, out, frequency, height, m, owner, narrow, rows, channels, added_context,
            out_context, NONE,
        )  # fmt: skip
    _finish(
        total, bias, added, raw, out, frequency, height, m, owner, n, rows, channels, added_context, out_context,
        NONE,
    )  # fmt: skip


@triton.jit
def await_input(EARLY: tl.constexpr):
    """Wait for the launch in front of this one, and let the next one come."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def place(m, rows, per_frame, owners):
    """The rows m, those beyond the last one taken for it, and the streams that they belong to."""
    row = tl.minimum(m, rows - 1)
    return row, tl.load(owners + row // per_frame)


@triton.jit
def _multiply(
    left,
    weight,
    n,
    narrow,
    columns,
    depth,
    taps,
    tap_stride,
    SQUARES: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The products of rows that begin at `left` with the columns n and `narrow`; the sums of the rows' squares."""
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, WIDE), tl.float32)
    total_narrow = tl.zeros((BLOCK_M, MIN_BLOCK if NARROW == 0 else NARROW), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    # The taps of some inputs follow each other, since they read nearly the same rows.
    for step in range(taps * tl.cdiv(depth, BLOCK_K)):
        tap, first = step % taps, step // taps * BLOCK_K
        a_at = left + tap * tap_stride + (first + k)[None, :]
        a = tl.load(a_at) if EVEN_K else tl.load(a_at, mask=(k < depth - first)[None, :], other=0.0)
        if SQUARES:
            squares += tl.sum(a.to(tl.float32) * a.to(tl.float32), 1)
        a = a.to(weight.dtype.element_ty)
        right = weight + ((tap * depth + first + k) * columns)[:, None]
        b = _load_right(right + n[None, :], k, n, depth - first, columns, EVEN_K, EVEN_N)
        total = tl.dot(a, b, total, input_precision="tf32x3")
        if NARROW > 0:
            b = _load_right(right + narrow[None, :], k, narrow, depth - first, columns, EVEN_K, EVEN_N)
            total_narrow = tl.dot(a, b, total_narrow, input_precision="tf32x3")
    return total, total_narrow, squares


@triton.jit
def _load_right(at, k, n, depth, columns, EVEN_K: tl.constexpr, EVEN_N: tl.constexpr):
    """A tile of weights [k, n]."""
    if EVEN_K and EVEN_N:
        return tl.load(at)
    return tl.load(at, mask=(k < depth)[:, None] & (n < columns)[None, :], other=0.0)


@triton.jit
def _square(weight, k, n, channels):
    """A part of a weight [channels, channels]."""
    return _load_right(weight + (k * channels)[:, None] + n[None, :], k, n, channels, channels, False, False)


@triton.jit
def _biased_snake(total, bias, frequency, height, n, columns):
    """SnakeBeta of total plus bias, in the columns n."""
    total += tl.load(bias + n, mask=n < columns, other=0.0)[None, :]
    return _snake(total, frequency, height, n, columns)


@triton.jit
def _finish(
    total,
    bias,
    added,
    raw,
    out,
    frequency,
    height,
    m,
    owner,
    n,
    rows,
    columns,
    added_context,
    out_context,
    ACTIVATION: tl.constexpr,
):
    """The end of a tile, in the columns n: total plus `bias` plus `added`, to `raw`, and activated to `out`.

    Each of the four may be None. `frequency` None: no SnakeBeta. `raw` has no contexts.
    """
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    if bias is not None:
        total += tl.load(bias + n, mask=n < columns, other=0.0)[None, :]
    if added is not None:
        added_at = added + (m * columns + (owner + 1) * added_context)[:, None] + n[None, :]
        total += tl.load(added_at, mask=inside, other=0.0).to(tl.float32)
    if raw is not None:
        tl.store(raw + (m * columns)[:, None] + n[None, :], total, mask=inside)
    if out is not None:
        if ACTIVATION == SWIGLU:
            gate, up = tl.split(tl.reshape(total, (total.shape[0], total.shape[1] // 2, 2)))
            total = gate * tl.sigmoid(gate) * up
            columns = columns // 2
            n = tl.min(n, 0) // 2 + tl.arange(0, total.shape[1])
            inside = (m < rows)[:, None] & (n < columns)[None, :]
        if ACTIVATION == GELU:
            total = 0.5 * total * (1 + tl.erf(total * 0.7071067811865476))
        if frequency is not None:
            total = _snake(total, frequency, height, n, columns)
        tl.store(out + (m * columns + (owner + 1) * out_context)[:, None] + n[None, :], total, mask=inside)


@triton.jit
def _snake(x, frequency, height, n, columns):
    """x + sin²(x · frequency) · height, in the columns n. sin² repeats after π, and a polynomial does for the rest."""
    angle = x * tl.load(frequency + n, mask=n < columns, other=0.0)[None, :]
    turns = tl.floor(angle * 0.3183098861837907 + 0.5)
    # π in three parts, the first two so short that their products with `turns` are exact.
    angle = angle - turns * 3.140625 - turns * 9.67502593994140625e-4 - turns * 1.509957990978376432e-7
    square = angle * angle
    series = -0.0001981069071916863 + square * 2.6083159809786594e-06
    series = -0.16666659712791443 + square * (0.00833307858556509 + square * series)
    sine = angle + angle * square * series
    return x + sine * sine * tl.load(height + n, mask=n < columns, other=0.0)[None, :]
