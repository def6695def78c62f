"""A recording → its codec frames: Mimi's encoder, under the published parameter names (`encoder.*`).

Convolutions down to 25 Hz, a causal transformer, a last convolution to 12.5 Hz, residual quantization. The transformer
looks back `sliding_window` positions, as it was trained; the reference's default attention forgets to, which tells for
recordings of more than 10 s alone.
"""

from collections import OrderedDict
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import CODEBOOKS
from .config import CodecEncoderConfig

USAGE_FLOOR = 1e-5


class PaddedConv(nn.Module):
    """A causal convolution: [1, in, T] → [1, out, ⌈T / stride⌉]. `padding` fills both the front and the last stride."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        padding: Literal["constant", "replicate"] = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, stride, dilation=dilation, bias=bias)
        self.stride, self.context, self.padding = stride, (kernel - 1) * dilation + 1 - stride, padding

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (self.context, -x.shape[-1] % self.stride), mode=self.padding)
        return self.conv(padded)


class ResidualUnit(nn.Module):
    """ELU, dilated convolution, ELU, pointwise convolution, added to the input."""

    def __init__(self, config: CodecEncoderConfig, channels: int, dilation: int) -> None:
        super().__init__()
        inner = channels // config.compress
        self.block = nn.Sequential(
            nn.ELU(),
            PaddedConv(channels, inner, config.residual_kernel_size, dilation=dilation),
            nn.ELU(),
            PaddedConv(inner, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Convolutions(nn.Module):
    """[1, 1, samples] → [1, hidden, positions at 25 Hz]: channels double whenever the rate falls."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        channels = config.num_filters
        layers: list[nn.Module] = [PaddedConv(1, channels, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            dilations = (config.dilation_growth_rate**unit for unit in range(config.num_residual_layers))
            layers += [ResidualUnit(config, channels, dilation) for dilation in dilations]
            layers += [nn.ELU(), PaddedConv(channels, 2 * channels, 2 * ratio, stride=ratio)]
            channels *= 2
        layers += [nn.ELU(), PaddedConv(channels, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, samples: Tensor) -> Tensor:
        return self.layers(samples)


class Attention(nn.Module):
    """Rotary attention over a whole sequence: [1, T, hidden] → the same."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        inner = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        """`angles` [T, head_dim]; `mask` [T, T] is true where a position sees a key."""
        query, key, value = (
            projection(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(_rotated(query, angles), _rotated(key, angles), value, mask)
        return self.o_proj(attended.transpose(1, 2).flatten(2))


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """The two halves of a head are the two coordinates."""
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


class LayerScale(nn.Module):
    """Scales a branch by one learned factor a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, branch: Tensor) -> Tensor:
        return self.scale * branch


class TransformerLayer(nn.Module):
    """Attention and MLP, each with LayerNorm before and LayerScale after."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.mlp = nn.Sequential(OrderedDict(fc1=up, activation=nn.GELU(), fc2=down))
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), angles, mask))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """[1, T, hidden] → the same: a position sees itself and the `sliding_window` − 1 before it."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.window, self.head_dim, self.rope_theta = config.sliding_window, config.head_dim, config.rope_theta
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        age = positions.unsqueeze(1) - positions
        mask = (age >= 0) & (age < self.window)
        frequencies = self.rope_theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = (positions.unsqueeze(1) * frequencies).repeat(1, 2)
        for layer in self.layers:
            x = layer(x, angles, mask)
        return x


class Codebook(nn.Module):
    """Entries as training keeps them: a running sum of vectors and how often each was used."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(entries))
        self.embed_sum = nn.Parameter(torch.zeros(entries, width))

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """[T, width] → the nearest entries, int64 [T], and what they leave of the vectors."""
        entries = self.embed_sum / self.cluster_usage.clamp(min=USAGE_FLOOR).unsqueeze(1)
        codes = torch.cdist(vectors, entries).argmin(dim=-1)
        return codes, vectors - entries[codes]


class ResidualQuantizer(nn.Module):
    """Codebooks, each for what those before it leave: [1, hidden, T] → int64 [T, books]."""

    def __init__(self, config: CodecEncoderConfig, books: int) -> None:
        super().__init__()
        width = config.codebook_dim
        self.input_proj = nn.Conv1d(config.hidden_size, width, 1, bias=False)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"codebook": Codebook(config.codebook_size, width)}) for _ in range(books)
        )

    def forward(self, x: Tensor) -> Tensor:
        left = self.input_proj(x)[0].transpose(0, 1)
        codes = []
        for layer in self.layers:
            book_codes, left = layer.get_submodule("codebook")(left)
            codes.append(book_codes)
        return torch.stack(codes, dim=1)


class SplitQuantizer(nn.Module):
    """Codebook 0 for what is said, the others for how; the published encoder has more of these than a frame holds."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = ResidualQuantizer(config, 1)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(config, CODEBOOKS - 1)

    def forward(self, x: Tensor) -> Tensor:
        split = (self.semantic_residual_vector_quantizer(x), self.acoustic_residual_vector_quantizer(x))
        return torch.cat(split, dim=1)


class CodecEncoder(nn.Module):
    """float32 [samples] at 24 kHz → int64 [⌈samples / 1920⌉, 16]; the last frame is filled up with silence."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.encoder = Convolutions(config)
        self.encoder_transformer = Transformer(config)
        self.downsample = PaddedConv(hidden, hidden, 4, stride=2, bias=False, padding="replicate")
        self.quantizer = SplitQuantizer(config)

    def forward(self, samples: Tensor) -> Tensor:
        hidden = self.encoder(samples[None, None])
        hidden = self.encoder_transformer(hidden.transpose(1, 2)).transpose(1, 2)
        return self.quantizer(self.downsample(hidden))
