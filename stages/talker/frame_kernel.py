"""`predictor/frame.cu` on the GPU: compiled for one predictor's sizes, its weights packed, launched."""

import math
from pathlib import Path

import torch
from torch import Tensor

from .. import cuda_kernel
from ..cuda_kernel import CAPABILITY
from ..types import CODEBOOKS
from .frames import WORDS, FrameWeights, Rows

BLOCKS, THREADS = 128, 384
"""As in `layout.cuh`: blocks share a product's outputs."""
ADDED_PARTS = 8
"""Parts of the inputs of a product that is added, of which a block multiplies one."""
_PANEL, _EIGHT, _STEP = 64, 8, 16
_SETS = 3
"""Of places for what blocks tell one another, which a pass's layers and its head use in turn."""
_GROUPS, _SLOTS = 2, 19
"""Warp groups take panels of weights in turn; so many of a product find room at once."""
_KV_HEADS, _SHARERS = ADDED_PARTS, (2, 4, 8)
"""Query heads that can share a key."""
_COLUMNS = (16, 32, 48)
"""A block can have of a product that is not added; of one that is it has a panel."""
_HEAD_DIM, _HIDDEN = 128, 1024
_MULTIPROCESSORS = 132
_SOURCE = Path(__file__).with_name("predictor") / "frame.cu"


def fits(weights: FrameWeights) -> bool:
    """Whether the kernel takes these weights: bfloat16, the published sizes or ones that are split as evenly."""
    layer = weights.decoder.layers[0]
    columns = [outputs / BLOCKS for outputs in (len(layer.qkv), len(layer.gate_up), weights.heads.shape[1])]
    panels = [inputs / (ADDED_PARTS * _PANEL) for inputs in (layer.output.shape[1], layer.down.shape[1])]
    told = len(layer.qkv) + layer.output.shape[1] + layer.down.shape[1]  # in a step, bfloat16, or float32 logits
    return (
        weights.heads.dtype == torch.bfloat16
        and weights.heads.shape[2] == _HIDDEN
        and layer.qk_norm.shape[1] == _HEAD_DIM
        and len(layer.qk_norm) - layer.heads == _KV_HEADS
        and layer.heads / _KV_HEADS in _SHARERS
        and all(count in _COLUMNS for count in columns)
        and all(count % _GROUPS == 0 and 2 * _GROUPS <= count <= _SLOTS for count in panels)
        and 2 * weights.heads.shape[1] <= told
        and (len(weights.decoder.layers) + 1) % _SETS == 0
    )


def runs_on(device: torch.device) -> bool:
    """Whether a GPU is Hopper's and has room for all blocks at once, which wait for one another."""
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor) == CAPABILITY and properties.multi_processor_count >= _MULTIPROCESSORS


class FrameKernel:
    """All draws and passes of frames, one launch."""

    def __init__(self, weights: FrameWeights) -> None:
        self._weights, self._eps = weights, weights.decoder.norm_eps
        layers = weights.decoder.layers
        heads, qk_heads = layers[0].heads, len(layers[0].qk_norm)
        self._qkv, self._attended = len(layers[0].qkv), layers[0].output.shape[1]
        self._inner, self._entries = layers[0].down.shape[1], weights.heads.shape[1]
        products = [
            torch.cat(
                (
                    packed(scaled(by_heads(layer.qkv, heads), layer.input_norm)),
                    packed(layer.output, ADDED_PARTS),
                    packed(scaled(taking_turns(layer.gate_up), layer.post_norm)),
                    packed(layer.down, ADDED_PARTS),
                ),
                1,
            )
            for layer in layers
        ]
        self._layers = torch.stack(products)
        self._heads = torch.stack([packed(scaled(head, weights.decoder.norm)) for head in weights.heads])
        self._qk_norm = torch.stack([layer.qk_norm for layer in layers])
        sizes = {"HEADS": heads, "KV_HEADS": qk_heads - heads, "INNER": self._inner, "ENTRIES": self._entries}
        sizes |= {"HIDDEN": _HIDDEN, "LAYERS": len(layers), "FIRST_ENTRIES": weights.ids}
        sizes["FIRST_STRIDE"] = len(weights.head)
        code = compiled(sizes)
        self._room: list[tuple[int, Tensor, Tensor]] = []
        self._kernel = cuda_kernel.Kernel(code, "predictor_frames", THREADS)

    def draw(self, first_logits: Tensor, start: Tensor, rows: Rows, seen: Tensor) -> Tensor:
        """As `frames.PlainPredictor.draw`. All but `rows`' parts must be contiguous."""
        codes = torch.empty(len(start), CODEBOOKS, dtype=torch.int64, device=start.device)
        cache = self._weights.new_cache(len(start))
        self._launch(start, 2, cache, range(1, CODEBOOKS), rows.words, codes, (first_logits, seen))
        return codes

    def logits(self, inputs: Tensor, cache: Tensor, book: int) -> Tensor:
        """As `frames.PlainPredictor.logits`: of one pass, as its draw finds them. `inputs` must be contiguous."""
        rows, count, _ = inputs.shape
        codes = torch.empty(rows, CODEBOOKS, dtype=torch.int64, device=inputs.device)
        words = torch.zeros(rows, WORDS, dtype=torch.int32, device=inputs.device)
        self._launch(inputs, count, cache, range(book, book + 1), words, codes)
        tokens = _room_of(rows * count)
        told, at = self._room_for(tokens)[1][0].view(torch.float32), tokens * self._x_bytes // 4
        return told[at : at + rows * self._entries].view(rows, self._entries).clone()

    def _launch(
        self,
        inputs: Tensor,
        count: int,
        cache: Tensor,
        books: range,
        words: Tensor,
        codes: Tensor,
        first: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        rows = len(words)
        room, told, handed = self._room_for(_room_of(rows * count))
        weights = self._weights
        tensors = (
            self._layers,
            self._heads,
            self._qk_norm,
            weights.rope.cos,
            weights.rope.sin,
            cache,
            inputs,
            told,
            handed,
            weights.predictor_table,
            weights.code_offsets,
            words,
        )
        pointers = [tensor.data_ptr() for tensor in tensors]
        pointers += [tensor.data_ptr() for tensor in first] if first else [0, 0]
        numbers = (room, rows, count, books[0], books[-1])
        stream = torch.cuda.current_stream().cuda_stream
        self._kernel.launch(BLOCKS, stream, [*pointers, codes.data_ptr()], numbers, (self._eps,))

    @property
    def _x_bytes(self) -> int:
        """What blocks tell of a row before its queries or logits: it, before a layer's middle and in it; squares."""
        return 2 * (2 * _HIDDEN + 4 * _HIDDEN // _PANEL)

    def _room_for(self, tokens: int) -> tuple[int, Tensor, Tensor]:
        """For how many tokens, at least these, there is room; what blocks tell one another, [3, words], and their parts
        of sums: all bits are set at first.
        """
        if not self._room or self._room[-1][0] < tokens:
            row, device = self._x_bytes + 2 * (self._qkv + self._attended + self._inner), self._layers.device
            told = torch.full((_SETS, tokens * row // 4), -1, dtype=torch.int32, device=device)
            handed = torch.full((tokens * BLOCKS * _PANEL,), -1, dtype=torch.int32, device=device)
            # Captured graphs still work with the room that was large enough for them.
            self._room.append((tokens, told, handed))
        return self._room[-1]


def _room_of(tokens: int) -> int:
    """So many tokens there is room for when these are told."""
    return math.ceil(tokens / _STEP) * _STEP


def scaled(matrix: Tensor, norm: Tensor) -> Tensor:
    """[…, in], each input scaled, rounded once: a norm's weights move into the matrix behind it."""
    return (matrix.float() * norm.float()).to(matrix.dtype)


def by_heads(qkv: Tensor, heads: int) -> Tensor:
    """Rows of the matrices for queries, keys and values: of each key/value head its queries, its key and its value."""
    key_rows = _KV_HEADS * _HEAD_DIM
    parts = torch.split(qkv, [heads * _HEAD_DIM, key_rows, key_rows])
    return torch.cat([part.view(_KV_HEADS, -1, qkv.shape[1]) for part in parts], 1).flatten(0, 1)


def taking_turns(gate_up: Tensor) -> Tensor:
    """Rows of gate and up, one of each in turn; of eight neighbours two, then the others, as a thread has them."""
    size = gate_up.shape[1]
    return gate_up.view(2, -1, 4, 2, size).permute(1, 3, 2, 0, 4).reshape(-1, size)


def packed(weight: Tensor, parts: int = 1) -> Tensor:
    """A matrix [out, in] as the kernel's blocks read it, [blocks, out · in / blocks].

    A block has a share of the outputs and one of `parts` of the inputs: units of 8 outputs and 64 inputs, panels of
    inputs and in them eights of outputs.
    """
    shares, panels = BLOCKS // parts, weight.shape[1] // (parts * _PANEL)
    units = weight.view(shares, -1, _EIGHT, parts, panels, _PANEL).permute(0, 3, 4, 1, 2, 5)
    return _swizzled(units.reshape(-1, _EIGHT, _PANEL)).reshape(BLOCKS, -1)


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
