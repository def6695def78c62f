"""The decoder that the Talker's backbone and its code predictor both are: weights plus arithmetic, nothing else.

Where keys and values are kept is the caller's affair: attention is a callable that gets them (`Attend`), rotary angles
are passed in. A training run passes `causal` over a whole batch; an engine passes attention over its own buffers.
Parameters bear the published names. The arithmetic reads them through `DecoderWeights`, in which projections that share
an input are one matrix: an engine makes it once and keeps it, a module's own `forward` makes it anew, under autograd.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import TransformerConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q, k, v): q is [batch, heads, positions, head_dim], k and v have kv_heads; returns the shape of q.

q and k are normalised and rotated already.
"""

Linear = Callable[[Tensor, Tensor], Tensor]
"""linear(x, weight): [batch, positions, in] → [batch, positions, out]; weights are [out, in], or as it wants them."""


@dataclass(frozen=True)
class Rope:
    """Rotary angles of some positions: [positions, 1, head_dim], or [batch, positions, 1, head_dim] where they differ.

    The two halves of a head are the two coordinates; the first half of `sin` is negated.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def table(cls, config: TransformerConfig, positions: int) -> "Rope":
        """The angles of positions 0 … positions − 1, float32 on the CPU."""
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), config.rope_theta**-exponents)[:, None]
        return cls(torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1))

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rope":
        """The same angles on another device or in another dtype."""
        return Rope(self.cos.to(device, dtype), self.sin.to(device, dtype))

    def at(self, positions: Tensor | slice) -> "Rope":
        """The angles of these positions, a slice of or an integer tensor into a table."""
        return Rope(self.cos[positions], self.sin[positions])

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate [batch, positions, heads, head_dim]."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, dims=-1), self.sin)


@dataclass(frozen=True)
class LayerWeights:
    """One layer as the arithmetic reads it; matrices are [out, in], or as the `Linear` wants them."""

    heads: int
    input_norm: Tensor
    qkv: Tensor
    """Rows of all query heads, then all key heads, then all value heads."""
    qk_norm: Tensor
    """[heads + kv_heads, head_dim]: each head's norm weight, so that queries and keys are normalised together."""
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class DecoderWeights:
    """All layers, the final norm and the epsilon that every norm shares."""

    layers: tuple[LayerWeights, ...]
    norm: Tensor
    norm_eps: float

    def decode(self, x: Tensor, rope: Rope, attend: Attend, linear: Linear = F.linear) -> Tensor:
        """Hidden states after the final norm, [batch, positions, hidden], of inputs of that shape."""
        for index, layer in enumerate(self.layers):
            x = x + _attention(index, layer, self._normalise(x, layer.input_norm), rope, attend, linear, self.norm_eps)
            gate, up = linear(self._normalise(x, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + linear(F.silu(gate) * up, layer.down)
        return self._normalise(x, self.norm)

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.norm_eps)


def _attention(
    index: int, layer: LayerWeights, x: Tensor, rope: Rope, attend: Attend, linear: Linear, norm_eps: float
) -> Tensor:
    """The attention branch of one layer, without its residual."""
    heads, (qk_heads, head_dim) = layer.heads, layer.qk_norm.shape
    qkv = linear(x, layer.qkv).view(*x.shape[:2], -1, head_dim)
    qk = F.rms_norm(qkv[:, :, :qk_heads], (head_dim,), eps=norm_eps) * layer.qk_norm
    qk = rope.rotate(qk).transpose(1, 2)
    out = attend(index, qk[:, :heads], qk[:, heads:], qkv[:, :, qk_heads:].transpose(1, 2))
    return linear(out.transpose(1, 2).flatten(2), layer.output)


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The `Attend` of sequences that stand whole in the batch: every position sees itself and those before it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class SelfAttention(nn.Module):
    """The parameters of one layer's attention."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, self.heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * head_dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head_dim, config.rms_norm_eps)


class Mlp(nn.Module):
    """The parameters of one layer's SwiGLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class DecoderLayer(nn.Module):
    """The parameters of one layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def weights(self) -> LayerWeights:
        """The layer as the arithmetic reads it; gradients flow back to the parameters."""
        it = self.self_attn
        norms = (it.q_norm.weight.expand(it.heads, -1), it.k_norm.weight.expand(it.kv_heads, -1))
        return LayerWeights(
            heads=it.heads,
            input_norm=self.input_layernorm.weight,
            qkv=torch.cat((it.q_proj.weight, it.k_proj.weight, it.v_proj.weight)),
            qk_norm=torch.cat(norms),
            output=it.o_proj.weight,
            post_norm=self.post_attention_layernorm.weight,
            gate_up=torch.cat((self.mlp.gate_proj.weight, self.mlp.up_proj.weight)),
            down=self.mlp.down_proj.weight,
        )


class Decoder(nn.Module):
    """Layers and the final norm. The input is embedded by whoever owns the embeddings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_eps = config.rms_norm_eps

    def weights(self) -> DecoderWeights:
        """The decoder as the arithmetic reads it; gradients flow back to the parameters."""
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        return DecoderWeights(tuple(layer.weights() for layer in layers), self.norm.weight, self.norm_eps)

    def forward(self, x: Tensor, rope: Rope, attend: Attend = causal) -> Tensor:
        """Hidden states after the final norm, [batch, positions, hidden], of inputs of that shape."""
        return self.weights().decode(x, rope, attend)
