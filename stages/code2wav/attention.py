"""The Triton program of the decoder's attention, for a GPU; `transformer` holds its reference."""

import triton
import triton.language as tl


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
