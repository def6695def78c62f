"""The codec decoder's transformer: causal, with a sliding window, no q/k norm and LayerScale on both branches.

A position sees itself and the `sliding_window` − 1 before it; that many keys and values are a layer's state.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import CodecConfig
from .layers import State, Stateful

LAYER_SCALE = 0.01


@dataclass(frozen=True)
class Surroundings:
    """What every layer's attention needs to know of a step, computed once.

    `cos` and `sin` are [streams or 1, 1, T, head_dim], the first half of `sin` negated; `mask` is true where a position
    sees a key: [streams or 1, 1, T, keys].
    """

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary embedding of [streams, heads, T, head_dim]: the two halves of a head are the two coordinates."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, dims=-1), self.sin)


class Attention(Stateful):
    """Grouped-query attention. State: rotated keys and values, [2, kv_heads, window − 1, head_dim], oldest first."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.state_shape = (2, self.kv_heads, config.sliding_window - 1, self.head_dim)
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, around: Surroundings, state: State | None = None) -> Tensor:
        query = around.rotate(self._split(self.q_proj(x)))
        key_value = torch.stack((around.rotate(self._split(self.k_proj(x))), self._split(self.v_proj(x))), dim=1)
        if state is not None:
            joined = torch.cat((state[self], key_value), dim=3)
            state[self] = joined.narrow(3, x.shape[1], self.state_shape[2])
            key_value = joined
        key, value = key_value.unbind(1)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=around.mask, enable_gqa=self.heads != self.kv_heads
        )
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[streams, T, heads · head_dim] → [streams, heads, T, head_dim]."""
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LayerScale(nn.Module):
    """Adds a branch to the stream of the residual, scaled by one learned factor a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), LAYER_SCALE))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return torch.addcmul(x, branch, self.scale)


class TransformerLayer(nn.Module):
    """Attention and MLP, each with RMSNorm before and LayerScale after."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = Mlp(config)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, around: Surroundings, state: State | None = None) -> Tensor:
        x = self.self_attn_layer_scale(x, self.self_attn(self.input_layernorm(x), around, state))
        return self.mlp_layer_scale(x, self.mlp(self.post_attention_layernorm(x)))


class Transformer(Stateful):
    """Projection in, layers, a final norm, projection out: [streams, T, latent] → the same. State: frames seen."""

    state_shape = ()
    state_dtype = torch.int64

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.window, self.head_dim, self.rope_theta = config.sliding_window, config.head_dim, config.rope_theta
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        around = self._surroundings(x, state)
        hidden = self.input_proj(x)
        for layer in self.layers:
            hidden = layer(hidden, around, state)
        return self.output_proj(self.norm(hidden))

    def _surroundings(self, x: Tensor, state: State | None) -> Surroundings:
        """Positions, rotation and mask of a step of T frames; the positions of the state move on by T."""
        frames = x.shape[1]
        new = torch.arange(frames, device=x.device)
        if state is None:
            positions = new.unsqueeze(0)
            age = new.unsqueeze(1) - new
            mask = (age >= 0) & (age < self.window)
        else:
            start = state[self]
            positions = start.unsqueeze(1) + new
            state[self] = start + frames
            # Key j lies window − 1 − j frames before the chunk; a young stream has not filled all of its keys yet.
            before = self.window - 1
            keys = torch.arange(before + frames, device=x.device)
            age = new.unsqueeze(1) + before - keys
            filled = keys >= before - start.unsqueeze(1)
            mask = (age >= 0) & (age < self.window) & filled.unsqueeze(1)
            mask = mask.unsqueeze(1)
        cos, sin = self._rotation(positions, x.dtype)
        return Surroundings(cos, sin, mask)

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The angles are float32 whatever the dtype: bfloat16 cannot tell neighbouring positions apart."""
        exponents = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=torch.float32) / self.head_dim
        angles = positions[:, None, :, None] * self.rope_theta**-exponents
        sin = angles.sin()
        return torch.cat((angles.cos(),) * 2, dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)
