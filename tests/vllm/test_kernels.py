"""The kernels compute what `frames` computes, on the GPU if there is one, else in Triton's interpreter."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from duotone.stages.errors import CheckpointError
from duotone.stages.talker.frames import FrameCompleter, NewFrames, PlainPredictor, draw_codes
from duotone.stages.talker.kernels import FIXED_TILES, TILES, FusedPredictor
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


@pytest.mark.parametrize(("heads", "kv_heads", "tiles"), [(6, 2, TILES), (4, 4, FIXED_TILES)])
def test_whole_frames_are_those_of_the_reference(heads, kv_heads, tiles):
    weights = frame_weights(random_talker(talker_config(heads, kv_heads), DEVICE))
    hidden = torch.randn(len(REQUESTS), HIDDEN, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    code0 = torch.tensor([3, 1, 4, 1, 5], device=DEVICE)
    results = []
    rows = np.arange(len(REQUESTS))
    for predictor in (PlainPredictor(weights), FusedPredictor(weights, tiles)):
        completer = FrameCompleter(predictor, len(REQUESTS))
        for slot, sampling in enumerate(REQUESTS):
            completer.enter(slot, sampling)
        codes = completer.complete(hidden, code0, NewFrames(rows, rows, np.full_like(rows, 2), np.full_like(rows, 7)))
        results.append((codes, completer.slot_inputs))
    (expected, expected_inputs), (codes, inputs) = results
    assert torch.equal(codes, expected)
    torch.testing.assert_close(inputs, expected_inputs)


@pytest.mark.parametrize("rows", [1, 5, 33, 70])
@pytest.mark.parametrize("tiles", [TILES, FIXED_TILES])
def test_logits_and_cache_are_those_of_the_reference_for_any_number_of_rows(rows, tiles):
    weights = frame_weights(random_talker(talker_config(), DEVICE))
    torch.manual_seed(rows)
    results = []
    for predictor in (PlainPredictor(weights), FusedPredictor(weights, tiles)):
        generator = torch.Generator().manual_seed(rows)
        cache = weights.new_cache(rows).zero_()
        for book, positions in ((1, 2), (2, 1)):
            inputs = torch.randn(rows, positions, weights.heads.shape[2], generator=generator).to(DEVICE)
            results.append((predictor.logits(inputs, cache, book), cache.clone()))
    for (expected, expected_cache), (logits, cache) in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(cache, expected_cache, atol=1e-4, rtol=1e-4)


def test_with_fixed_tiles_the_number_of_rows_changes_no_bit_of_a_row():
    weights = frame_weights(random_talker(talker_config(), DEVICE))
    predictor = FusedPredictor(weights, FIXED_TILES)
    inputs = torch.randn(40, 2, weights.heads.shape[2], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    together = predictor.logits(inputs.clone(), weights.new_cache(40), 1)
    alone = predictor.logits(inputs[17:18].clone(), weights.new_cache(1), 1)
    assert torch.equal(alone[0], together[17])


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("start", [0, 3])
def test_attention_normalises_rotates_stores_and_attends(start, positions):
    weights = frame_weights(random_talker(talker_config(), DEVICE))
    layer = weights.decoder.layers[0]
    torch.manual_seed(start + positions)
    qkv = torch.randn(3, positions, len(layer.qkv), device=DEVICE)
    cache = torch.randn(weights.new_cache(3)[0].shape, device=DEVICE)
    expected_cache = cache.clone()
    out = FusedPredictor(weights).attend(layer, qkv, cache, start)

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
    inputs = FusedPredictor(weights).draw(logits, 4, codes, top_k, floats)
    expected = draw_codes(logits, floats[:, 5], floats[:, 0], top_k, floats[:, 1])
    assert torch.equal(codes[:, 4], expected)
    assert not codes[:, [0, 3, 5]].any()
    table_rows = weights.predictor_table[expected + weights.code_offsets[4]]
    assert torch.equal(inputs[:, 0], table_rows)


def test_heads_that_the_kernels_cannot_split_are_refused():
    weights = frame_weights(random_talker(talker_config()))
    odd = replace(weights.decoder.layers[0], qk_norm=torch.ones(8, 6))
    with pytest.raises(CheckpointError, match="head_dim 6"):
        FusedPredictor(replace(weights, decoder=replace(weights.decoder, layers=(odd,))))
