"""The codec decoder's layers: modules that hold weights alone, under the published parameter names.

Every layer is causal. With `state` None it sees a whole sequence that begins in silence, and autograd works. With a
State it continues streams where their last chunk ended: it takes its rows, [streams, ...], and puts back the new ones.
`freeze` swaps, for decoding, what a layer would compute from its weights at every call by constants.
"""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[nn.Module, Tensor]
"""The rows of a batch of streams for each stateful layer: what the layer remembers of the stream's past."""

KERNEL = 7
DILATIONS = (1, 3, 9)
SNAKE_EPSILON = 1e-9
SMALL_INPUT = 20_480
"""Up to this many elements PyTorch convolves a single CPU input without oneDNN."""


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
        ...


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
        self.state_shape = (channels, context)

    def join(self, x: Tensor, state: State | None) -> Tensor:
        """[streams, channels, T] → [streams, channels, context + T]; the state moves on."""
        if self.context == 0:
            return x
        if state is None:
            return F.pad(x, (self.context, 0))
        joined = torch.cat((state[self], x), dim=-1)
        state[self] = joined[..., -self.context :]
        return joined


class CausalConv(LeftContext):
    """A convolution that sees itself and the past: [streams, in, T] → [streams, out, T]."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, (kernel - 1) * dilation)
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation, groups=groups)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        convolved: Tensor = self.conv(self.join(x, state))
        return convolved

    def frozen(self) -> nn.Module:
        return FrozenDilatedConv(self) if self.conv.dilation != (1,) else self


class FrozenDilatedConv(LeftContext):
    """CausalConv that multiplies matrices where a CPU's dilated convolution would be slow: on a single small input."""

    def __init__(self, trained: CausalConv) -> None:
        super().__init__(trained.conv.in_channels, trained.context)
        self.conv = trained.conv
        self.dilation, self.taps = trained.conv.dilation[0], trained.conv.kernel_size[0]
        # [out, in, tap] → [out, tap · in], to meet the columns below.
        self.register_buffer("bias", frozen_bias(trained.conv).unsqueeze(1))
        self.register_buffer("matrix", trained.conv.weight.detach().transpose(1, 2).flatten(1).contiguous())

    bias: Tensor
    matrix: Tensor

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        joined = self.join(x, state)
        streams, channels, length = joined.shape
        if streams > 1 or joined.numel() > SMALL_INPUT or joined.device.type != "cpu":
            convolved: Tensor = self.conv(joined)
            return convolved
        shifts = (self.taps, channels, x.shape[-1])
        columns = joined.as_strided(shifts, (self.dilation, length, 1)).reshape(self.taps * channels, -1)
        return torch.addmm(self.bias, self.matrix, columns).unsqueeze(0)


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
        spread: Tensor = self.conv(self.join(x, state))
        return spread.narrow(-1, self.context * self.stride, x.shape[-1] * self.stride)

    def frozen(self) -> "FrozenTransposedConv":
        return FrozenTransposedConv(self)


class FrozenTransposedConv(LeftContext):
    """CausalTransposedConv as a plain convolution that makes the `stride` samples of an input as so many channels.

    Several times faster on a CPU, where PyTorch's transposed convolution is the generic one.
    """

    def __init__(self, trained: CausalTransposedConv) -> None:
        weight = trained.conv.weight.detach()
        in_channels, out_channels, kernel = weight.shape
        super().__init__(in_channels, trained.context)
        self.stride, self.out_channels = trained.stride, out_channels
        taps = trained.context + 1
        # [in, out, tap, stride], the newest input's tap first → [out · stride, in, tap], the newest last.
        padded = F.pad(weight, (0, taps * self.stride - kernel)).reshape(*weight.shape[:2], taps, self.stride)
        self.register_buffer("weight", padded.flip(2).permute(1, 3, 0, 2).flatten(0, 1).contiguous())
        self.register_buffer("bias", frozen_bias(trained.conv).repeat_interleave(self.stride))

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        made = F.conv1d(self.join(x, state), self.weight, self.bias)
        return made.view(x.shape[0], self.out_channels, self.stride, -1).transpose(2, 3).flatten(2)


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
        return FrozenSnakeBeta(*(constant.detach() for constant in self._constants()))

    def _constants(self) -> tuple[Tensor, Tensor]:
        return self.alpha.exp().unsqueeze(-1), (self.beta.exp() + SNAKE_EPSILON).reciprocal().unsqueeze(-1)


class FrozenSnakeBeta(nn.Module):
    """SnakeBeta with its constants, each [channels, 1], computed once."""

    def __init__(self, frequency: Tensor, height: Tensor) -> None:
        super().__init__()
        self.register_buffer("frequency", frequency)
        self.register_buffer("height", height)

    frequency: Tensor
    height: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x, self.height, (x * self.frequency).sin_().square_())


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
        residual: Tensor = self.conv2(self.act2(hidden), state)
        return x + residual


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
