"""The kernels compute what `frames` computes, on the GPU if there is one, else in Triton's interpreter."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from duotone.stages.errors import CheckpointError
from duotone.stages.talker import frames, kernels
from duotone.stages.talker.frames import FrameCompleter, NewFrames
from duotone.stages.types import Sampling

from ..stages.talker.small_predictor import HIDDEN, frame_weights, random_talker, talker_config

pytestmark = pytest.mark.filterwarnings("default")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REQUESTS = [
    Sampling(seed=1, temperature=0.0),
    Sampling(seed=2, subtalker_temperature=0.7, subtalker_top_k=5),
    Sampling(seed=3, subtalker_temperature=1.3, subtalker_top_k=0, subtalker_top_p=0.8),
    Sampling(seed=4, subtalker_top_k=20, subtalker_top_p=0.6),
    Sampling(seed=5, subtalker_top_k=0),
]


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4)])
def test_whole_frames_are_those_of_the_reference(heads, kv_heads):
    weights = frame_weights(random_talker(talker_config(heads, kv_heads), DEVICE))
    hidden = torch.randn(len(REQUESTS), HIDDEN, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    code0 = torch.tensor([3, 1, 4, 1, 5], device=DEVICE)
    results = []
    rows = np.arange(len(REQUESTS))
    for implementation in (frames.next_inputs, kernels.next_inputs):
        completer = FrameCompleter(weights, len(REQUESTS), implementation)
        for slot, sampling in enumerate(REQUESTS):
            completer.enter(slot, sampling)
        codes = completer.complete(hidden, code0, NewFrames(rows, rows, np.full_like(rows, 2), np.full_like(rows, 7)))
        results.append((codes, completer.slot_inputs))
    (expected, expected_inputs), (codes, inputs) = results
    assert torch.equal(codes, expected)
    torch.testing.assert_close(inputs, expected_inputs)


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("start", [0, 3])
def test_attention_normalises_rotates_stores_and_attends(start, positions):
    weights = frame_weights(random_talker(talker_config(), DEVICE))
    layer = weights.decoder.layers[0]
    torch.manual_seed(start + positions)
    qkv = torch.randn(3, positions, len(layer.qkv), device=DEVICE)
    cache = torch.randn(weights.new_cache(3)[0].shape, device=DEVICE)
    expected_cache = cache.clone()
    out = kernels.attend(weights, layer, qkv, cache, start)

    qk_heads = len(layer.qk_norm)
    heads = qkv.view(3, positions, -1, layer.qk_norm.shape[1])
    normed = torch.nn.functional.rms_norm(heads[:, :, :qk_heads], heads.shape[3:], eps=1e-6) * layer.qk_norm
    stop = start + positions
    rotated = weights.rope.at(slice(start, stop)).rotate(normed).transpose(1, 2)
    expected_cache[0, :, :, start:stop] = rotated[:, -2:]
    expected_cache[1, :, :, start:stop] = heads[:, :, qk_heads:].transpose(1, 2)
    mask = torch.ones(positions, stop, dtype=torch.bool, device=DEVICE).tril(start)
    expected = torch.nn.functional.scaled_dot_product_attention(
        rotated[:, :-2], *expected_cache[:, :, :, :stop], attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(out.view(3, positions, -1), expected.transpose(1, 2).flatten(2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cache, expected_cache, atol=1e-5, rtol=1e-5)


def test_draws_are_those_of_the_reference_for_every_kind_of_request():
    weights = frame_weights(random_talker(talker_config(), DEVICE))
    torch.manual_seed(5)
    rows = 64
    logits = 3 * torch.randn(rows, 50, device=DEVICE)
    logits[::7, 10:20] = logits[::7, :1]  # equal logits
    top_k = torch.randint(0, 60, (rows,), dtype=torch.int32, device=DEVICE)
    floats = torch.rand(rows, 17, device=DEVICE)
    floats[:, 0] = torch.where(torch.rand(rows, device=DEVICE) < 0.2, 0.0, 2 * floats[:, 0])
    floats[::3, 1] = 1.0
    codes = torch.zeros(rows, 16, dtype=torch.int64, device=DEVICE)
    inputs = kernels.draw(weights, logits, 4, codes, top_k, floats)
    expected = frames.draw_codes(logits, floats[:, 5], floats[:, 0], top_k, floats[:, 1])
    assert torch.equal(codes[:, 4], expected)
    assert not codes[:, [0, 3, 5]].any()
    table_rows = weights.predictor_table[expected + weights.code_offsets[4]]
    assert torch.equal(inputs[:, 0], table_rows)


def test_heads_that_the_kernels_cannot_split_are_refused():
    weights = frame_weights(random_talker(talker_config()))
    odd = replace(weights.decoder.layers[0], qk_norm=torch.ones(8, 6))
    with pytest.raises(CheckpointError, match="head_dim 6"):
        kernels.check(replace(weights, decoder=replace(weights.decoder, layers=(odd,))))
