"""`predictor/pass.cu` on the GPU: compiled for one predictor's sizes, its weights packed, launched."""

import math
from pathlib import Path

import torch
from torch import Tensor

from .. import cuda_kernel
from ..cuda_kernel import CAPABILITY, SHARED_BYTES
from .frames import FrameWeights

CLUSTERS, RANKS, GROUPS, THREADS = 64, 2, 2, 256
"""As in `layout.cuh`: clusters share a product's outputs, blocks of a cluster and their warp groups its inputs."""
PARTS, ADDED_PARTS = RANKS, 8
"""Parts of a product's inputs, of which a block multiplies one; where it is added and a team shares its columns."""
_MEETINGS, _MOST_PARTS, _COUNTER_WORDS = 5, 8, 32
"""Of a layer; and the parts of a result whose blocks are counted there, each in a cache line of its own."""
_KV_HEADS = _MOST_PARTS
_TILE_ROWS = 64
_PANEL, _EIGHT = 64, 8
_COLUMNS = (32, 64, 96)
"""Outputs that one instruction can multiply."""
_HEAD_DIM, _HIDDEN = 128, 1024
_ADDED_COLUMNS = ADDED_PARTS * _HIDDEN // (CLUSTERS * RANKS)
_MULTIPROCESSORS = 132
_SOURCE = Path(__file__).with_name("predictor") / "pass.cu"


def fits(weights: FrameWeights) -> bool:
    """Whether the kernel takes these weights: bfloat16, the published sizes or ones that are split as evenly."""
    layer = weights.decoder.layers[0]
    columns = [outputs / CLUSTERS for outputs in (len(layer.qkv), len(layer.gate_up), weights.heads.shape[1])]
    inner = layer.output.shape[1], layer.down.shape[1]
    return (
        weights.heads.dtype == torch.bfloat16
        and weights.heads.shape[2] == _HIDDEN
        and layer.qk_norm.shape[1] == _HEAD_DIM
        and len(layer.qk_norm) - layer.heads == _KV_HEADS
        and THREADS // 32 % (layer.heads / _KV_HEADS) == 0
        and all(count in _COLUMNS for count in columns)
        and all(inputs % (ADDED_PARTS * GROUPS * _PANEL) == 0 for inputs in inner)
        and _shared_bytes(max(*columns, _ADDED_COLUMNS), sum(inner)) <= SHARED_BYTES
    )


def _shared_bytes(columns: float, inner: int) -> float:
    """Weights of the widest product and of both that are added, three times half the sums of 64 rows, squares."""
    return (
        columns * _HIDDEN // RANKS * 2
        + inner // ADDED_PARTS * _ADDED_COLUMNS * 2
        + 3 * 64 * 4 * (columns / 2 + 8 + 1)
        + 32
    )


def runs_on(device: torch.device) -> bool:
    """Whether a GPU is Hopper's and has room for all blocks at once, which wait for one another."""
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor) == CAPABILITY and properties.multi_processor_count >= _MULTIPROCESSORS


class PassKernel:
    """A predictor's passes, one launch each."""

    def __init__(self, weights: FrameWeights) -> None:
        layers, self._eps = weights.decoder.layers, weights.decoder.norm_eps
        heads, qk_heads = layers[0].heads, len(layers[0].qk_norm)
        self._qkv, self._attended = len(layers[0].qkv), layers[0].output.shape[1]
        self._inner, self._entries = layers[0].down.shape[1], weights.heads.shape[1]
        products = [
            torch.cat(
                (
                    packed(scaled(by_heads(layer.qkv, heads), layer.input_norm), PARTS),
                    packed(layer.output, ADDED_PARTS),
                    packed(scaled(taking_turns(layer.gate_up), layer.post_norm), PARTS),
                    packed(layer.down, ADDED_PARTS),
                ),
                1,
            )
            for layer in layers
        ]
        self._layers = torch.stack(products)
        self._heads = torch.stack([packed(scaled(head, weights.decoder.norm), PARTS) for head in weights.heads])
        self._qk_norm = torch.stack([layer.qk_norm for layer in layers])
        self._rope = weights.rope
        self._counters, self._team_counters = (
            torch.zeros(count * _COUNTER_WORDS, dtype=torch.int32, device=weights.heads.device)
            for count in (_MEETINGS * len(layers) * _MOST_PARTS, CLUSTERS * RANKS // ADDED_PARTS)
        )
        sizes = {"HEADS": heads, "KV_HEADS": qk_heads - heads, "INNER": self._inner, "ENTRIES": self._entries}
        code = compiled(sizes | {"HIDDEN": _HIDDEN, "LAYERS": len(layers)})
        self._kernel = cuda_kernel.Kernel(code, "predictor_pass", THREADS)

    def logits(self, inputs: Tensor, cache: Tensor, book: int) -> Tensor:
        """As `frames.PlainPredictor`. Uses up `inputs`, which must be contiguous."""
        rows, count, _ = inputs.shape
        tokens = rows * count
        tile_rows = math.ceil(tokens / _TILE_ROWS) * _TILE_ROWS
        logits = torch.empty(rows, self._entries, device=inputs.device)
        tensors = (
            self._layers,
            self._heads[book - 1],
            self._qk_norm,
            self._rope.cos,
            self._rope.sin,
            cache,
            inputs,
            inputs.new_empty(tokens, self._qkv),
            inputs.new_empty(tokens, self._attended),
            inputs.new_empty(tokens, self._inner),
            logits,
            logits.new_empty(CLUSTERS * RANKS, tile_rows, _ADDED_COLUMNS),
            self._counters,
            self._team_counters,
        )
        numbers = (rows, count, book + 1 - count)
        pointers = [tensor.data_ptr() for tensor in tensors]
        stream = torch.cuda.current_stream().cuda_stream
        self._kernel.launch(CLUSTERS * RANKS, stream, pointers, numbers, (self._eps,))
        return logits


def scaled(matrix: Tensor, norm: Tensor) -> Tensor:
    """[…, in], each input scaled, rounded once: a norm's weights move into the matrix behind it."""
    return (matrix.float() * norm.float()).to(matrix.dtype)


def by_heads(qkv: Tensor, heads: int) -> Tensor:
    """Rows of the matrices for queries, keys and values: of each key/value head its queries, its key and its value."""
    key_rows = _KV_HEADS * _HEAD_DIM
    parts = torch.split(qkv, [heads * _HEAD_DIM, key_rows, key_rows])
    return torch.cat([part.view(_KV_HEADS, -1, qkv.shape[1]) for part in parts], 1).flatten(0, 1)


def taking_turns(gate_up: Tensor) -> Tensor:
    """Rows of gate and up, one of each in turn."""
    return torch.stack(gate_up.chunk(2), 1).flatten(0, 1)


def packed(weight: Tensor, parts: int) -> Tensor:
    """A matrix [out, in] as the kernel's blocks read it, [blocks, out · in / blocks].

    A block has units of 8 outputs and 64 inputs: parts of the inputs, in them eights of its cluster's outputs, in them
    panels of inputs.
    """
    outputs, inputs = weight.shape
    split = weight.view(CLUSTERS, outputs // (CLUSTERS * _EIGHT), _EIGHT, parts, inputs // (parts * _PANEL), _PANEL)
    units = split.permute(0, 3, 1, 4, 2, 5).reshape(-1, _EIGHT, _PANEL)  # cluster, part, eight, panel
    return _swizzled(units[:, :, _input_order(weight.device)]).reshape(CLUSTERS * RANKS, -1)


def _input_order(device: torch.device) -> Tensor:
    """Which input of a panel stands where: a thread's eight neighbours are what it feeds into two instructions.

    An instruction takes 16 inputs. Thread t of four holds numbers 2t, 2t + 1, 2t + 8 and 2t + 9 of them.
    """
    place = torch.arange(_PANEL, device=device)
    block, step, number = place // 32, place // 16 % 2, place % 16
    return 32 * block + 8 * (number % 8 // 2) + 4 * step + 2 * (number // 8) + number % 2


def _swizzled(units: Tensor) -> Tensor:
    """Rows of 128 bytes with their 16-byte pieces exchanged: piece p of row r stands at p xor r, r modulo 8."""
    pieces = units.view(-1, 8, 8, 8)
    each = torch.arange(8, device=units.device)
    return pieces[:, each[:, None], each[:, None] ^ each]


def compiled(sizes: dict[str, int]) -> bytes:
    """The kernel for these sizes, as machine code. Needs no GPU.

    Raises:
        RuntimeError: with the compiler's messages.
    """
    return cuda_kernel.compiled(_SOURCE, sizes)
