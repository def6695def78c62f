"""The code predictor as Triton kernels: five launches a layer, two a pass, one a frame.

The same arithmetic as `frames.PlainPredictor`, which is their reference. A pass streams all weights past a few rows: it
is bound by memory and by the hand-over between launches. On Hopper a launch starts to load its weights, and to bring
those of the product after the next into the L2 cache, before what the launch in front wrote is to be seen.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from ..types import CODEBOOKS
from . import programs
from .decoder import DecoderWeights, LayerWeights
from .frames import FrameWeights

_HOPPER = (9, 0)
"""From this compute capability on, a launch can overlap the one before it."""
_INPUTS, _OUTPUTS = 512, 64
"""What the products' inputs and outputs are multiples of."""
_FINISH_COLUMNS = 512
_ATTEND_WARPS, _DRAW_WARPS = 4, 8


@dataclass(frozen=True)
class Tile:
    """The block of a product that a program computes; its inputs are split among so many warps for each 16 rows."""

    rows: int
    columns: int
    split: int


@dataclass(frozen=True)
class Tiles:
    """The tiles of a pass's products."""

    qkv: Tile
    output: Tile
    gate_up: Tile
    down: Tile
    heads: Tile


_NARROW = Tiles(Tile(16, 32, 8), Tile(16, 8, 8), Tile(16, 64, 8), Tile(16, 8, 8), Tile(16, 16, 8))
FIXED_TILES = ((sys.maxsize, _NARROW),)
"""For any number of rows the same, so that a row's result never depends on how many there are."""
TILES = (
    (16, _NARROW),
    (32, Tiles(Tile(32, 32, 4), Tile(16, 16, 8), Tile(32, 64, 4), Tile(16, 16, 8), Tile(32, 16, 4))),
    (64, Tiles(Tile(64, 32, 2), Tile(32, 16, 4), Tile(64, 64, 2), Tile(32, 16, 4), Tile(64, 16, 2))),
    (sys.maxsize, Tiles(Tile(128, 32, 2), Tile(64, 16, 2), Tile(64, 64, 2), Tile(64, 16, 2), Tile(128, 16, 2))),
)
"""Up to so many rows these tiles: for the published sizes work for all of an H200's multiprocessors."""


def fits(weights: FrameWeights) -> bool:
    """Whether the kernels take these weights: bfloat16, and sizes such as the published ones."""
    layer = weights.decoder.layers[0]
    head_dim = layer.qk_norm.shape[1]
    inputs = (layer.qkv.shape[1], layer.output.shape[1], layer.down.shape[1])
    outputs = (len(layer.qkv), len(layer.gate_up), weights.heads.shape[1])
    return (
        weights.heads.dtype == torch.bfloat16
        and not head_dim & (head_dim - 1)
        and all(size % _INPUTS == 0 for size in inputs)
        and all(size % _OUTPUTS == 0 for size in outputs)
    )


class FusedPredictor:
    """`frames.Predictor` on a GPU, for weights that fit."""

    def __init__(self, weights: FrameWeights, tiles: Sequence[tuple[int, Tiles]] = TILES) -> None:
        self.weights = replace(
            weights,
            decoder=_folded(weights.decoder),
            heads=_scaled(weights.heads, weights.decoder.norm),
        )
        self._tiles = tiles
        device = weights.heads.device
        self._early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER
        self._ahead = _second_next(self.weights)

    def logits(self, inputs: Tensor, cache: Tensor, book: int) -> Tensor:
        """As `frames.Predictor`. Uses up `inputs`, which must be contiguous."""
        rows, count, _ = inputs.shape
        residual = inputs.flatten(0, 1)
        tiles = next(tiles for limit, tiles in self._tiles if len(residual) <= limit)
        decoder = self.weights.decoder
        for index, (layer, layer_cache) in enumerate(zip(decoder.layers, cache, strict=True)):
            qkv, output, gate_up, down = self._ahead[4 * index : 4 * index + 4]
            projected = self._product(residual, layer.qkv, tiles.qkv, qkv, norm=True)
            attended = self.attend(layer, projected.view(rows, count, -1), layer_cache, book + 1 - count)
            self._product(attended, layer.output, tiles.output, output, onto=residual)
            product = self._product(residual, layer.gate_up, tiles.gate_up, gate_up, norm=True, gated=True)
            self._product(product, layer.down, tiles.down, down, onto=residual)
        last = residual.view(rows, -1)[:, -inputs.shape[2] :]
        logits = torch.empty(rows, self.weights.heads.shape[1], device=inputs.device)
        return self._product(last, self.weights.heads[book - 1], tiles.heads, self._ahead[-1], norm=True, onto=logits)

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        tile: Tile,
        ahead: Tensor,
        norm: bool = False,
        gated: bool = False,
        onto: Tensor | None = None,
    ) -> Tensor:
        """x · weightᵀ, [rows, columns], of `x` normalised or not; `ahead` is brought nearer meanwhile.

        Gated, even columns are gates of the odd ones. Without a norm the product is added to `onto`, in place.
        """
        (rows, inner), columns = x.shape, len(weight)
        out = x.new_empty(rows, columns // 2 if gated else columns) if onto is None else onto
        programs.product[columns // tile.columns, triton.cdiv(rows, tile.rows)](
            x,
            weight,
            out,
            ahead,
            ahead.nbytes,
            rows,
            columns,
            x.stride(0),
            inner // (tile.split * programs.DEPTH.value),
            self.weights.decoder.norm_eps,
            INNER=inner,
            NORM=norm,
            GATED=gated,
            ADD=onto is not None and not norm,
            EARLY=self._early,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            SPLIT=tile.split,
            num_warps=tile.split * tile.rows // 16,
            launch_pdl=self._early,
        )
        return out

    def attend(self, layer: LayerWeights, qkv: Tensor, cache: Tensor, start: int) -> Tensor:
        """Normalise and rotate queries and keys, store keys and values, attend: [rows · count, heads · head_dim].

        `qkv` is [rows, count, (heads + 2 · kv_heads) · head_dim] of the positions from `start`, `cache` one layer's.
        """
        rows, count, _ = qkv.shape
        qk_heads, head_dim = layer.qk_norm.shape
        kv_heads = cache.shape[2]
        warps = math.gcd(kv_heads, _ATTEND_WARPS)
        out = qkv.new_empty(rows * count, layer.output.shape[1])
        programs.attend[rows, kv_heads // warps](
            qkv,
            layer.qk_norm,
            self.weights.rope.cos,
            self.weights.rope.sin,
            cache[0],
            cache[1],
            out,
            start,
            self.weights.decoder.norm_eps,
            head_dim**-0.5,
            EARLY=self._early,
            COUNT=count,
            KV_HEADS=kv_heads,
            GROUP=qk_heads // kv_heads - 1,
            HALF=head_dim // 2,
            POSITIONS=triton.next_power_of_2(start + count),
            CACHED=CODEBOOKS,
            WARPS=warps,
            num_warps=warps,
            launch_pdl=self._early,
        )
        return out

    def draw(self, logits: Tensor, book: int, codes: Tensor, top_k: Tensor, floats: Tensor) -> Tensor:
        """As `frames.Predictor`; `codes` must be contiguous."""
        rows, entries = logits.shape
        table = self.weights.predictor_table
        chosen = table.new_empty(rows, 1, table.shape[1])
        programs.draw[(rows,)](
            logits,
            floats,
            top_k,
            table,
            self.weights.code_offsets,
            codes,
            chosen,
            book,
            top_k.stride(0),
            floats.stride(0),
            EARLY=self._early,
            BOOKS=codes.shape[1],
            ENTRIES=entries,
            BLOCK=triton.next_power_of_2(entries),
            SIZE=table.shape[1],
            SIZE_BLOCK=triton.next_power_of_2(table.shape[1]),
            num_warps=_DRAW_WARPS,
            launch_pdl=self._early,
        )
        return chosen

    def finish(self, codes: Tensor, slots: Tensor, text_ids: Tensor, slot_inputs: Tensor) -> Tensor:
        """As `frames.Predictor`; `codes` must be contiguous."""
        rows, books = codes.shape
        size = slot_inputs.shape[1]
        block = min(_FINISH_COLUMNS, triton.next_power_of_2(size))
        frames = torch.empty(rows, books, dtype=torch.int16, device=codes.device)
        programs.finish[rows, triton.cdiv(size, block)](
            codes,
            slots,
            text_ids,
            self.weights.code_table,
            self.weights.code_offsets,
            self.weights.text_table,
            slot_inputs,
            frames,
            slots.stride(0),
            text_ids.stride(0),
            EARLY=self._early,
            BOOKS=books,
            SIZE=size,
            BLOCK=block,
            launch_pdl=self._early,
        )
        return frames


def _folded(decoder: DecoderWeights) -> DecoderWeights:
    """The decoder whose norms' weights have moved into the matrices behind them, gates and ups taking turns."""
    layers = tuple(
        replace(
            layer,
            input_norm=torch.ones_like(layer.input_norm),
            qkv=_scaled(layer.qkv, layer.input_norm),
            post_norm=torch.ones_like(layer.post_norm),
            gate_up=_scaled(torch.stack(layer.gate_up.chunk(2), 1).flatten(0, 1), layer.post_norm),
        )
        for layer in decoder.layers
    )
    return replace(decoder, layers=layers, norm=torch.ones_like(decoder.norm))


def _scaled(matrix: Tensor, norm: Tensor) -> Tensor:
    """[…, in], each input scaled, rounded once."""
    return (matrix.float() * norm.float()).to(matrix.dtype)


def _second_next(weights: FrameWeights) -> list[Tensor]:
    """Of each product of a pass, the weights of the product after the next; the last pass's heads stand for all."""
    layers = weights.decoder.layers
    matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    cycle = [*matrices, weights.heads[0], *matrices[:2]]
    return cycle[2:]
