"""`unit/unit.cu` on the GPU: residual units of few channels, one launch each, and their weights as it reads them."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import cuda_kernel
from .layers import KERNEL
from .products import Product, Rows

ROWS = 64
"""Of a tile. A tile has one stream's alone, so a frame must have whole tiles."""
_PART, _STEP, _SHEET = 96, 16, 64
_SOURCE = Path(__file__).with_name("unit") / "unit.cu"


@dataclass(frozen=True)
class Shape:
    """How a launch is shared out."""

    groups: int
    """Warp groups of a block."""
    stages: int
    """Panels of weights that a block has room for: all, or those of a tap."""


SHAPES = {96: Shape(3, 12), 192: Shape(2, 3)}
"""Channels → how their units are computed."""


def fits(channels: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel takes units of so many channels, on this device."""
    if channels not in SHAPES or dtype != torch.bfloat16 or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) == cuda_kernel.CAPABILITY


class UnitKernel:
    """Computes units of so many channels."""

    def __init__(self, channels: int, device: torch.device, shape: Shape | None = None) -> None:
        """`shape` None: the one that was measured best."""
        self._shape = shape or SHAPES[channels]
        code = compiled(channels, self._shape)
        self._kernel = cuda_kernel.Kernel(code, "residual_unit", 128 * self._shape.groups)
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count

    def launch(self, unit: "PackedUnit", x: Rows, added: Rows, raw: Rows | None, out: Rows) -> None:
        """As `fused.FusedUnit`. `added` has no contexts, a frame of x a multiple of ROWS."""
        assert added.context == 0
        tiles = x.rows // ROWS
        pointers = [
            unit.panels.data_ptr(),
            unit.constants.data_ptr(),
            x.values.data_ptr(),
            added.values.data_ptr(),
            0 if raw is None else raw.values.data_ptr(),
            out.values.data_ptr(),
            x.owners.data_ptr(),
        ]
        ints = tiles, x.per_frame // ROWS, unit.dilation, out.context
        stream = torch.cuda.current_stream().cuda_stream
        self._kernel.launch(min(self._multiprocessors, tiles), stream, pointers, ints)


class PackedUnit:
    """A unit as the kernel reads it, of its two products with a SnakeBeta behind each."""

    def __init__(self, kernel: UnitKernel, dilated: Product, pointwise: Product) -> None:
        self._kernel, self.dilation = kernel, dilated.dilation
        self.panels = packed(dilated.weight, pointwise.weight)
        """bfloat16, flat."""
        self.constants = torch.stack([_constants(dilated), _constants(pointwise)])
        """float32 [2, 3, channels]: of each convolution the bias, and twice the frequency and half the height of the
        SnakeBeta behind it."""

    def __call__(self, x: Rows, added: Rows, raw: Rows | None, out: Rows) -> None:
        """As `fused.FusedUnit`. `added` has no contexts, a frame of x a multiple of ROWS."""
        self._kernel.launch(self, x, added, raw, out)


def compiled(channels: int, shape: Shape) -> bytes:
    """The kernel for so many channels, as machine code. Needs no GPU.

    Raises:
        RuntimeError: with the compiler's messages.
    """
    sizes = {"CHANNELS": channels, "GROUPS": shape.groups, "STAGES": shape.stages}
    return cuda_kernel.compiled(_SOURCE, sizes)


def packed(dilated: Tensor, pointwise: Tensor) -> Tensor:
    """Weights [taps · channels, channels] and [channels, channels], in before out, as the kernel goes through them.

    Steps are 16 inputs of a part's 96 outputs. Four of them are a sheet: 96 rows of 64 inputs.
    """
    channels = len(pointwise)
    parts, together = channels // _PART, math.gcd(channels, _SHEET) // _STEP
    order = _order(dilated.device)
    inputs = (_PART * torch.arange(parts, device=dilated.device)[:, None] + order).flatten()
    first = dilated.view(-1, together, _STEP, parts, _PART)[..., order].permute(0, 3, 1, 4, 2)
    then = pointwise[inputs].view(-1, _STEP, parts, _PART)[..., order].permute(2, 0, 3, 1)
    steps = torch.cat((first.reshape(-1, _PART, _STEP), then.reshape(-1, _PART, _STEP)))
    assert len(steps) == (KERNEL + 1) * parts * channels // _STEP
    return _swizzled(steps.view(-1, _SHEET // _STEP, _PART, _STEP).transpose(1, 2).reshape(-1, _SHEET)).flatten()


def _order(device: torch.device) -> Tensor:
    """Which of a part's columns a product makes where: of those that a thread gets, eight at a time are neighbours.

    Thread t of four gets columns 8j + 2t and 8j + 2t + 1 for every j.
    """
    place = torch.arange(_PART, device=device)
    return place // 32 * 32 + place % 8 // 2 * 8 + place // 8 % 4 * 2 + place % 2


def _swizzled(rows: Tensor) -> Tensor:
    """Rows of 128 bytes with their 16-byte pieces exchanged: piece p of row r stands at p xor r, r modulo 8."""
    pieces = rows.view(-1, 8, 8, 8)
    each = torch.arange(8, device=rows.device)
    return pieces[:, each[:, None], each[:, None] ^ each]


def _constants(product: Product) -> Tensor:
    assert product.snake is not None
    assert product.bias is not None
    return torch.stack([product.bias, 2 * product.snake.frequency, product.snake.height / 2])
