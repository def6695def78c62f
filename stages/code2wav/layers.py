"""The codec decoder's layers: modules that hold weights alone, under the published parameter names.

Every layer is causal. With `state` None it sees a whole sequence that begins in silence, and autograd works. With a
State it continues streams where their last chunk ended: it takes its rows, [streams, ...], and puts back the new ones.
`freeze` swaps, for decoding, what a layer would compute from its weights at every call by constants.
"""

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[nn.Module, Tensor]
"""The rows of a batch of streams for each stateful layer: what the layer remembers of the stream's past."""

KERNEL = 7
DILATIONS = (1, 3, 9)
SNAKE_EPSILON = 1e-9
SNAKE_TIMES = 32
"""Positions whose channels SnakeBeta computes as one row."""
PACKED = (torch.float32, "cpu")
"""The dtype and the type of device for which oneDNN lays weights out, and NumPy computes sines."""
ONEDNN = torch.ops.mkldnn
"""What torch.compile makes of a frozen convolution; no public function of PyTorch does the same."""


class Stateful(nn.Module):
    """A layer that remembers something of each stream; all zeros where a stream begins."""

    state_shape: tuple[int, ...]
    """Of one stream."""
    state_dtype: torch.dtype | None = None
    """None: that of the weights."""


@runtime_checkable
class Freezable(Protocol):
    """A layer that has a cheaper form once its weights stay as they are."""

    def frozen(self) -> nn.Module:
        """The form for decoding, in the dtype and on the device of the weights."""


def freeze(module: nn.Module) -> None:
    """Swap every Freezable part of `module` by its frozen form, in place. The state_dict is another one afterwards."""
    for name, child in list(module.named_children()):
        if isinstance(child, Freezable):
            setattr(module, name, child.frozen())
        else:
            freeze(child)


class LeftContext(Stateful):
    """Base of the convolutions: puts the last `context` inputs of the stream in front of the new ones."""

    def __init__(self, channels: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.state_shape = (context, channels)

    def join(self, x: Tensor, state: State | None) -> Tensor:
        """[streams, channels, T] → [streams, channels, context + T]; the state moves on.

        With a state the channels of a time lie together in memory: so a CPU convolves fastest.
        """
        if self.context == 0:
            return x
        if state is None:
            return F.pad(x, (self.context, 0))
        rows = torch.cat((state[self], x.mT), dim=1)
        state[self] = rows[:, -self.context :]
        return rows.mT


class CausalConv(LeftContext):
    """A convolution that sees itself and the past: [streams, in, T] → [streams, out, T]."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, (kernel - 1) * dilation)
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation, groups=groups)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        return self.conv(self.join(x, state))

    def frozen(self) -> "FrozenConv":
        conv = self.conv
        return FrozenConv(conv.weight.detach(), frozen_bias(conv), conv.dilation[0], conv.groups)


class CausalTransposedConv(LeftContext):
    """A transposed convolution without its last kernel − stride samples: [streams, in, T] → [streams, out, T · stride].

    A sample depends on its own input and the ⌈kernel / stride⌉ − 1 before. So the overlap with the next chunk is kept
    as the inputs that cause it, which are fewer than the outputs that they spread to.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int) -> None:
        super().__init__(in_channels, -(-kernel // stride) - 1)
        self.stride = stride
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel, stride=stride)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        spread = self.conv(self.join(x, state))
        return spread.narrow(-1, self.context * self.stride, x.shape[-1] * self.stride)

    def frozen(self) -> "FrozenConv":
        """A plain convolution that makes the `stride` samples of an input as so many channels: several times faster."""
        weight, taps = self.conv.weight.detach(), self.context + 1
        in_channels, out_channels, kernel = weight.shape
        # [in, out, tap, stride], the newest input's tap first → [stride · out, in, tap], the newest last.
        padded = F.pad(weight, (0, taps * self.stride - kernel)).view(in_channels, out_channels, taps, self.stride)
        whole = padded.flip(2).permute(3, 1, 0, 2).flatten(0, 1)
        return FrozenConv(whole, frozen_bias(self.conv).repeat(self.stride), spread=self.stride)


class FrozenConv(LeftContext):
    """A convolution whose weights stay: [streams, in, T] → [streams, out / spread, T · spread].

    Out of an input come `spread` samples one after the other, which it makes as channels. On a CPU oneDNN would lay the
    weights out at every call, which takes longer than a small chunk itself: here a shape of chunks finds them laid out.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1, groups: int = 1, spread: int = 1) -> None:
        """`weight` [out, in / groups, taps]."""
        self.taps, self.dilation, self.groups, self.spread = weight.shape[-1], dilation, groups, spread
        super().__init__(weight.shape[1] * groups, (self.taps - 1) * dilation)
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("bias", bias)
        on_cpu = (weight.dtype, weight.device.type) == PACKED
        # Other processors' oneDNN has not been tried.
        self._can_pack = on_cpu and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        self._layouts: dict[bytes, Tensor] = {}
        self._packed: dict[torch.Size, Tensor] = {}

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        joined = self.join(x, state)
        if state is None or not self._can_pack:
            made = F.conv1d(joined, self.weight, self.bias, dilation=self.dilation, groups=self.groups)
        else:
            made = self._convolve_packed(joined.unsqueeze(2)).squeeze(2)
        if self.spread == 1:
            return made
        return made.mT.reshape(len(x), x.shape[-1] * self.spread, -1).mT

    def _convolve_packed(self, image: Tensor) -> Tensor:
        """[streams, in, 1, context + T] → [streams, out, 1, T]."""
        kind = ((0, 0), (1, 1), (1, self.dilation), self.groups)
        packed = self._packed.get(image.shape)
        if packed is None:
            packed = ONEDNN._reorder_convolution_weight(self.weight.unsqueeze(2), *kind, image.shape)
            layout = ONEDNN._get_mkldnn_serialized_md(packed).numpy().tobytes()
            packed = self._packed[image.shape] = self._layouts.setdefault(layout, packed)
        return ONEDNN._convolution_pointwise(image, packed, self.bias, *kind, "none", [], "")


def frozen_bias(conv: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    """The bias, which every convolution here has."""
    assert conv.bias is not None
    return conv.bias.detach()


class SnakeBeta(nn.Module):
    """x + sin²(x · eᵅ) / (eᵝ + 1e-9), with α and β per channel: [streams, channels, T] → the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        frequency, height = self._constants()
        return torch.addcmul(x, height, (x * frequency).sin().square())

    def frozen(self) -> "FrozenSnakeBeta":
        return FrozenSnakeBeta(*(constant.detach().flatten() for constant in self._constants()))

    def _constants(self) -> tuple[Tensor, Tensor]:
        return self.alpha.exp().unsqueeze(-1), (self.beta.exp() + SNAKE_EPSILON).reciprocal().unsqueeze(-1)


class FrozenSnakeBeta(nn.Module):
    """SnakeBeta with its constants computed once. `frequency`, `height`: [channels]."""

    def __init__(self, frequency: Tensor, height: Tensor) -> None:
        super().__init__()
        self.channels = len(frequency)
        # Few channels side by side are too short a row to compute on: as many times as make a long one.
        self.register_buffer("frequency", frequency.repeat(SNAKE_TIMES))
        self.register_buffer("height", height.repeat(SNAKE_TIMES))

    frequency: Tensor
    height: Tensor

    def forward(self, x: Tensor) -> Tensor:
        streams, channels, length = x.shape
        width = math.gcd(length, SNAKE_TIMES) * channels
        rows = x.mT.reshape(streams, -1, width)
        angles = rows * self.frequency[:width]
        if (x.dtype, x.device.type) == PACKED:
            np.sin(angles.numpy(), out=angles.numpy())  # in a third of the time that PyTorch takes
        else:
            angles.sin_()
        return torch.addcmul(rows, self.height[:width], angles.square_()).view(streams, length, channels).mT


class ResidualUnit(nn.Module):
    """SnakeBeta, dilated convolution, SnakeBeta, pointwise convolution, added to the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, KERNEL, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        hidden = self.conv1(self.act1(x), state)
        return x + self.conv2(self.act2(hidden), state)


class VocoderBlock(nn.Module):
    """Half the channels, `rate` times the samples: SnakeBeta, transposed convolution, three residual units."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = [ResidualUnit(half, dilation) for dilation in DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(channels), CausalTransposedConv(channels, half, 2 * rate, rate), *units])

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        activation, *stateful = self.block
        x = activation(x)
        for layer in stateful:
            x = layer(x, state)
        return x


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm, a pointwise network of four times the width; scaled by gamma and added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, KERNEL, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        hidden = self.norm(self.dwconv(x, state).transpose(1, 2))
        hidden = self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return torch.addcmul(x, hidden.transpose(1, 2), self.gamma.unsqueeze(-1))
