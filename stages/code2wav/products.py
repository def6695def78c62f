"""Matrix products with their epilogues, from convolutions, transposed convolutions and linear layers.

What `product_programs.product` computes; and the sizes of the tiles in which it does, as measured on an H200.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn

from . import product_programs
from .layers import FrozenConv, FrozenSnakeBeta

MIN_BLOCK = product_programs.MIN_BLOCK.value
WIDEST_UNIT = 192
"""Channels of a residual unit that one program may compute whole."""
MULTIPROCESSORS = 132
"""Of an H200, on which tiles were measured."""
LEAST_BESIDE = 64
"""Columns of the narrow part of a tile."""


@dataclass(frozen=True)
class Tile:
    """What one program of a product computes, and how."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def split_columns(columns: int) -> tuple[int, int]:
    """Tensor cores' products have powers of two of columns: such a number as one part or, if it is three, two.

    Beside a part of 32 columns or fewer the wider one comes out wrong on an H200, 6 dB from the reference, though the
    PTX that Triton 3.6 makes is right. So few are better filled up.
    """
    third = columns // 3
    if columns == 3 * third and third >= LEAST_BESIDE and third & (third - 1) == 0:
        return 2 * third, third
    return max(MIN_BLOCK, triton.next_power_of_2(columns)), 0


def choose_tile(rows: int, columns: int, depth: int, taps: int, bytes_: int) -> Tile:
    """The tile of a product [rows, taps · depth] x [taps · depth, columns] of elements of `bytes_` bytes."""
    if bytes_ == 4:
        return Tile(64 if rows > 16 else 16, 64, 32, 4, 2)
    if rows <= 32:
        return Tile(32, 32 if columns <= 1536 else 64, 128, 4, 4)
    if depth % 64:  # nothing that is published
        return Tile(64, 64, 32, 4, 4)
    area = triton.cdiv(rows, 64) * 64 * columns
    if area <= MULTIPROCESSORS * 64 * 32:
        # Programs are few: small ones, with much of their inputs under way at once.
        return Tile(32, 32, 128, 4, 4) if taps * depth <= 512 else Tile(64, 32, 128, 4, 6)
    if area <= MULTIPROCESSORS * 64 * 128:
        return Tile(64, 64, 64, 4, 7)
    if area < 3 * MULTIPROCESSORS * 64 * 64:
        return Tile(64, 64, 64, 4, 4)
    if columns % 128:
        return Tile(128, 64, 64, 4, 3)
    if taps * depth < 1024 or area < 1.8 * MULTIPROCESSORS * 128 * 128:
        # Where the epilogue is a large part, one program's hides behind another's product.
        return Tile(64, 128, 64, 4, 3)
    return Tile(128, 128, 64, 4, 3)


def choose_unit_tile(channels: int, bytes_: int) -> Tile | None:
    """The tile of a whole residual unit, `n` all channels; None where two products compute it."""
    if channels > WIDEST_UNIT:
        return None
    if bytes_ == 4:
        return Tile(64, channels, 32, 4, 2)
    if channels % 64 == 0:
        return Tile(64, channels, 64, 4, 3)
    return Tile(128, channels, 32, 4, 3)


@dataclass(frozen=True)
class Rows:
    """What a layer makes of a batch: rows of its streams, one stream after the other."""

    values: Tensor
    """[frames · per_frame + streams · context, channels], contiguous."""
    owners: Tensor
    """int32 [frames]: which stream of the batch a frame belongs to, ascending from 0."""
    per_frame: int
    context: int = 0
    """Rows in front of those of each stream: the last ones of the stream's past."""

    @property
    def channels(self) -> int:
        return self.values.shape[1]

    @property
    def rows(self) -> int:
        """Without those of contexts."""
        return len(self.owners) * self.per_frame

    @property
    def context_size(self) -> int:
        """Elements of a context."""
        return self.context * self.channels

    def fresh(self, channels: int, dtype: torch.dtype | None = None) -> "Rows":
        """As many rows, not yet written and without contexts."""
        return Rows(self.values.new_empty(self.rows, channels, dtype=dtype), self.owners, self.per_frame)


def early(values: Tensor) -> dict[str, bool]:
    """How a program on the device of `values` is launched: on a GPU before the launch in front of it has ended."""
    return {"EARLY": values.is_cuda, "launch_pdl": values.is_cuda}


class Snake:
    """SnakeBeta's constants, float32 [columns], repeated for what a transposed convolution makes of one row."""

    def __init__(self, frozen: nn.Module, repeats: int = 1) -> None:
        assert isinstance(frozen, FrozenSnakeBeta)
        self.frequency = frozen.frequency[: frozen.channels].float().repeat(repeats)
        self.height = frozen.height[: frozen.channels].float().repeat(repeats)


class Product:
    """A matrix product with its epilogue. `weight` is [taps · depth, columns], `bias` float32 [columns]."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        taps: int = 1,
        dilation: int = 1,
        snake: Snake | None = None,
        activation: int = product_programs.NONE.value,
        norm_eps: float | None = None,
    ) -> None:
        self.context, self.channels, self.dilation = (taps - 1) * dilation, len(weight) // taps, dilation
        self.taps = taps
        self.weight = weight.to(dtype).contiguous()
        self.depth, self.columns = len(weight) // self.taps, weight.shape[1]
        self.bias = None if bias is None else bias.float().contiguous()
        self.snake, self.activation, self.norm_eps = snake, activation, norm_eps

    def __call__(self, x: Rows, *, out: Rows | None = None, raw: Rows | None = None, added: Rows | None = None) -> None:
        """`raw`, which has no contexts, gets product, bias and `added`; `out` the same after the activations.

        What a transposed convolution makes of one row are several, side by side here and one below the other in `out`.
        """
        tile = choose_tile(x.rows, self.columns, self.depth, self.taps, self.weight.element_size())
        product_programs.product[(triton.cdiv(x.rows, tile.m) * triton.cdiv(self.columns, tile.n),)](
            x.values,
            self.weight,
            self.bias,
            None if added is None else added.values,
            None if raw is None else raw.values,
            None if out is None else out.values,
            None if self.snake is None else self.snake.frequency,
            None if self.snake is None else self.snake.height,
            x.owners,
            x.rows,
            x.per_frame,
            self.columns,
            self.depth,
            self.taps,
            self.dilation * x.channels,
            x.channels,
            x.context_size,
            0 if added is None else added.context_size,
            0 if out is None else out.context_size,
            self.norm_eps,
            **early(x.values),
            ACTIVATION=self.activation,
            EVEN_K=self.depth % tile.k == 0,
            EVEN_N=self.columns % tile.n == 0,
            BLOCK_M=tile.m,
            BLOCK_N=tile.n,
            BLOCK_K=tile.k,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def conv_product(conv: nn.Module, dtype: torch.dtype, snake: Snake | None = None) -> Product:
    """Of a frozen convolution."""
    assert isinstance(conv, FrozenConv)
    weight = conv.weight.permute(2, 1, 0).flatten(0, 1)
    return Product(weight, conv.bias, dtype, taps=conv.taps, dilation=conv.dilation, snake=snake)
