"""How the checkpoint is shown to vLLM."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from duotone.stages.talker.decoder import Rope, SelfAttention

from ..stages.talker.small_predictor import talker_config

pytestmark = pytest.mark.filterwarnings("default")


def attention(module, x, config, eps):
    """A layer's attention branch as vLLM computes it: q/k norms with an epsilon of their own, heads of its size."""

    def heads(projected):
        return projected.unflatten(-1, (-1, config.head_dim))

    rope = Rope.table(config, x.shape[1]).to(x.device, x.dtype)
    q, k = (
        rope.rotate(F.rms_norm(heads(projection(x)), (config.head_dim,), norm.weight, eps)).transpose(1, 2)
        for projection, norm in ((module.q_proj, module.q_norm), (module.k_proj, module.k_norm))
    )
    v = heads(module.v_proj(x)).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return module.o_proj(out.transpose(1, 2).flatten(2))


def test_small_heads_are_spread_without_changing_what_the_model_computes():
    from duotone.stages.talker.vllm_model import head_factor, spread_heads

    small = replace(talker_config(), head_dim=8)
    factor = head_factor(small)
    large = replace(small, head_dim=8 * factor)
    assert large.head_dim == 32
    torch.manual_seed(0)
    original, spread = SelfAttention(small).double(), SelfAttention(large).double()
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter)
    prefix = "talker.model.layers.0.self_attn."
    spread.load_state_dict({name: spread_heads(prefix + name, t, factor) for name, t in original.state_dict().items()})
    x = torch.randn(2, 6, small.hidden_size, dtype=torch.float64)
    expected = attention(original, x, small, eps=1e-2)
    torch.testing.assert_close(attention(spread, x, large, eps=1e-2 / factor), expected)


def test_published_heads_are_left_alone():
    from duotone.stages.talker.vllm_model import head_factor, spread_heads

    assert head_factor(replace(talker_config(), head_dim=128)) == 1
    weight = torch.randn(4, 4)
    assert spread_heads("talker.model.layers.0.self_attn.q_proj.weight", weight, 1) is weight
    name = "talker.code_predictor.model.layers.0.self_attn.q_proj.weight"
    assert spread_heads(name, weight, 2) is weight, "the code predictor has kernels of its own"
