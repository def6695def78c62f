"""Triton kernels for completing frames: what stands between the predictor's matrix products, one launch each.

The same arithmetic as `frames.next_inputs`, which is their reference. A pass over a few positions of small vectors is
bound by the number of launches: here a layer takes eight, four of them matrix products.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..errors import CheckpointError
from ..types import CODEBOOKS
from .decoder import LayerWeights
from .frames import FrameWeights


def next_inputs(
    weights: FrameWeights, inputs: Tensor, cache: Tensor, book: int, codes: Tensor, top_k: Tensor, floats: Tensor
) -> Tensor:
    """`frames.next_inputs` on a GPU. Uses up `inputs`; `codes` must be contiguous."""
    rows, count = inputs.shape[:2]
    residual = inputs.flatten(0, 1)
    delta: Tensor | None = None
    for layer, layer_cache in zip(weights.decoder.layers, cache, strict=True):
        normed = add_rms_norm(residual, delta, layer.input_norm, weights.decoder.norm_eps)
        qkv = F.linear(normed, layer.qkv).view(rows, count, -1)
        attended = attend(weights, layer, qkv, layer_cache, book + 1 - count)
        normed = add_rms_norm(residual, F.linear(attended, layer.output), layer.post_norm, weights.decoder.norm_eps)
        delta = F.linear(silu_and_multiply(F.linear(normed, layer.gate_up)), layer.down)
    normed = add_rms_norm(residual, delta, weights.decoder.norm, weights.decoder.norm_eps)
    logits = F.linear(normed.view(rows, count, -1)[:, -1], weights.heads[book - 1])
    return draw(weights, logits, book, codes, top_k, floats)


def check(weights: FrameWeights) -> None:
    """Raise CheckpointError for a code predictor whose sizes the kernels do not take."""
    head_dim = weights.decoder.layers[0].qk_norm.shape[1]
    if head_dim & (head_dim - 1):
        raise CheckpointError(f"code_predictor_config: head_dim {head_dim} is not a power of two, which GPUs need here")


def add_rms_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` to `residual` in place, and return it normalised; all are [rows, size] but weight, [size]."""
    normed = torch.empty_like(residual)
    size = len(weight)
    block = triton.next_power_of_2(size)
    _add_rms_norm[(len(residual),)](
        residual, residual if delta is None else delta, weight, normed, eps, size, block, delta is not None
    )
    return normed


@triton.jit
def _add_rms_norm(residual, delta, weight, normed, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    at = tl.program_id(0) * SIZE + columns
    value = tl.load(residual + at, mask=inside, other=0.0)
    if ADD:
        value += tl.load(delta + at, mask=inside, other=0.0)
        tl.store(residual + at, value, mask=inside)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    tl.store(normed + at, value * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32), mask=inside)


def silu_and_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, [rows, size], of both side by side, [rows, 2 · size]."""
    rows, size = len(gate_up), gate_up.shape[1] // 2
    product = gate_up.new_empty(rows, size)
    block = min(1024, triton.next_power_of_2(size))
    _silu_and_multiply[(rows, triton.cdiv(size, block))](gate_up, product, size, block)
    return product


@triton.jit
def _silu_and_multiply(gate_up, product, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(product + row * SIZE + columns, gate * tl.sigmoid(gate) * up, mask=inside)


def attend(weights: FrameWeights, layer: LayerWeights, qkv: Tensor, cache: Tensor, start: int) -> Tensor:
    """Normalise and rotate queries and keys, store keys and values, attend: [rows · count, heads · head_dim].

    `qkv` is [rows, count, (heads + 2 · kv_heads) · head_dim] of the positions from `start`, `cache` one layer's.
    """
    rows, count, _ = qkv.shape
    qk_heads, head_dim = layer.qk_norm.shape
    kv_heads = cache.shape[2]
    group = qk_heads // kv_heads - 1
    out = qkv.new_empty(rows * count, layer.output.shape[1])
    _attend[(rows, kv_heads)](
        qkv,
        layer.qk_norm,
        weights.rope.cos,
        weights.rope.sin,
        cache[0],
        cache[1],
        out,
        start,
        weights.decoder.norm_eps,
        head_dim**-0.5,
        COUNT=count,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_BLOCK=triton.next_power_of_2(group),
        HALF=head_dim // 2,
        POSITIONS=CODEBOOKS,
    )
    return out


@triton.jit
def _attend(
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
    COUNT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """One key/value head of one row. A head is held as two halves, which rotation mixes."""
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
    for step in tl.static_range(COUNT):
        position = start + step
        source = qkv + (row * COUNT + step) * (HEADS + 2 * KV_HEADS) * HEAD
        angle_cos = tl.load(cos + position * HEAD + half).to(tl.float32)
        angle_sin = tl.load(sin + position * HEAD + HALF + half).to(tl.float32)
        here = (positions == position)[:, None]
        new_1, new_2 = _rotated(source, qk_norm, (HEADS + head) * HEAD + half[None, :], angle_cos, angle_sin, eps, HALF)
        key_1, key_2 = tl.where(here, new_1, key_1), tl.where(here, new_2, key_2)
        new_value = source + (HEADS + KV_HEADS + head) * HEAD + half
        value_1 = tl.where(here, tl.load(new_value).to(tl.float32)[None, :], value_1)
        value_2 = tl.where(here, tl.load(new_value + HALF).to(tl.float32)[None, :], value_2)
        tl.store(keys + cached, key_1, mask=here)
        tl.store(keys + cached + HALF, key_2, mask=here)
        tl.store(values + cached, value_1, mask=here)
        tl.store(values + cached + HALF, value_2, mask=here)
        # A group that is no power of two computes its last head more than once.
        queries = (head * GROUP + tl.minimum(group, GROUP - 1))[:, None] * HEAD + half[None, :]
        query_1, query_2 = _rotated(source, qk_norm, queries, angle_cos, angle_sin, eps, HALF)
        scores = tl.sum(query_1[:, None, :] * key_1[None, :, :] + query_2[:, None, :] * key_2[None, :, :], 2) * scale
        scores = tl.where((positions <= position)[None, :], scores, float("-inf"))
        shares = tl.exp(scores - tl.max(scores, 1)[:, None])
        shares /= tl.sum(shares, 1)[:, None]
        target = out + (row * COUNT + step) * HEADS * HEAD + queries
        tl.store(target, tl.sum(shares[:, :, None] * value_1[None, :, :], 1))
        tl.store(target + HALF, tl.sum(shares[:, :, None] * value_2[None, :, :], 1))


@triton.jit
def _rotated(source, norm, at, angle_cos, angle_sin, eps, HALF: tl.constexpr):
    """The halves, float32 [heads, HALF], of normalised and rotated heads whose first halves stand at `at`."""
    first, second = tl.load(source + at).to(tl.float32), tl.load(source + at + HALF).to(tl.float32)
    scale = tl.rsqrt(tl.sum(first * first + second * second, 1) / (2 * HALF) + eps)[:, None]
    first *= scale * tl.load(norm + at).to(tl.float32)
    second *= scale * tl.load(norm + at + HALF).to(tl.float32)
    return first * angle_cos - second * angle_sin, second * angle_cos + first * angle_sin


def draw(weights: FrameWeights, logits: Tensor, book: int, codes: Tensor, top_k: Tensor, floats: Tensor) -> Tensor:
    """`frames.draw_codes` into `codes[:, book]`, and the inputs [rows, 1, predictor hidden] that the codes become."""
    rows, entries = logits.shape
    table = weights.predictor_table
    chosen = table.new_empty(rows, 1, table.shape[1])
    _draw[(rows,)](
        logits,
        floats,
        top_k,
        table,
        weights.code_offsets,
        codes,
        chosen,
        book,
        top_k.stride(0),
        floats.stride(0),
        BOOKS=codes.shape[1],
        ENTRIES=entries,
        BLOCK=triton.next_power_of_2(entries),
        SIZE=table.shape[1],
        SIZE_BLOCK=triton.next_power_of_2(table.shape[1]),
        num_warps=8,
    )
    return chosen


@triton.jit
def _draw(
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
    BOOKS: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    entries = tl.arange(0, BLOCK)
    value = tl.load(logits + row * ENTRIES + entries, mask=entries < ENTRIES, other=float("-inf")).to(tl.float32)
    temperature = tl.load(floats + row * floats_stride)
    top_p = tl.load(floats + row * floats_stride + 1)
    uniform = tl.load(floats + row * floats_stride + 1 + book)
    limit = tl.load(top_k + row * top_k_stride)
    code = tl.argmax(value, 0)
    if temperature > 0:
        value = value / temperature
        # Integers in the order of the floats, so that the smallest that is kept can be found bit by bit.
        bits = value.to(tl.int32, bitcast=True)
        order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
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
    source = table + (tl.load(offsets + book) + code) * SIZE + columns
    tl.store(chosen + row * SIZE + columns, tl.load(source, mask=columns < SIZE), mask=columns < SIZE)


@triton.jit
def _least_kept(order, mass, goal):
    """The largest integer such that the entries not below it have at least `goal` of the mass."""
    low = tl.full((), -(1 << 31), tl.int64)
    high = tl.full((), (1 << 31) - 1, tl.int64)
    for _ in range(32):
        middle = (low + high + 1) >> 1
        enough = tl.sum(tl.where(order >= middle, mass, 0.0), 0) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low
