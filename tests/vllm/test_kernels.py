"""The kernels compute what `frames` computes: in bfloat16 on the GPU if there is one, else in Triton's interpreter."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from duotone.stages.talker.frames import FrameCompleter, NewFrames, PlainPredictor, draw_codes
from duotone.stages.talker.kernels import FIXED_TILES, TILES, FusedPredictor, fits
from duotone.stages.types import Sampling

from ..stages.talker.small_predictor import HIDDEN, fitting_config, frame_weights, random_talker, talker_config

pytestmark = pytest.mark.filterwarnings("default")
ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE, TOLERANCE = ("cuda", torch.bfloat16, 2e-2) if ON_GPU else ("cpu", torch.float32, 1e-5)
REQUESTS = [
    Sampling(seed=1, temperature=0.0),
    Sampling(seed=2, subtalker_temperature=0.7, subtalker_top_k=5),
    Sampling(seed=3, subtalker_temperature=1.3, subtalker_top_k=0, subtalker_top_p=0.8),
    Sampling(seed=4, subtalker_top_k=20, subtalker_top_p=0.6),
    Sampling(seed=5, subtalker_top_k=0),
]
EACH = np.arange(len(REQUESTS))
FRAMES = NewFrames(EACH, EACH, np.full_like(EACH, 2), np.full_like(EACH, 7))


def fitting_weights(heads=4, kv_heads=2):
    return frame_weights(random_talker(fitting_config(heads, kv_heads), DEVICE, DTYPE))


def wide(weights):
    """What a pass reads, in float64."""
    decoder = weights.decoder
    layers = tuple(
        replace(layer, **{field.name: getattr(layer, field.name).double() for field in fields(layer)[1:]})
        for layer in decoder.layers
    )
    rope = weights.rope.to(weights.rope.cos.device, torch.float64)
    decoder = replace(decoder, layers=layers, norm=decoder.norm.double())
    return replace(weights, decoder=decoder, heads=weights.heads.double(), rope=rope)


def completer(predictor):
    made = FrameCompleter(predictor, len(REQUESTS))
    for slot, sampling in enumerate(REQUESTS):
        made.enter(slot, sampling)
    return made


def hidden_and_code0():
    hidden = torch.randn(len(REQUESTS), HIDDEN, generator=torch.Generator().manual_seed(3))
    return hidden.to(DEVICE, DTYPE), torch.tensor([3, 1, 4, 1, 5], device=DEVICE)


def error(value, expected):
    """Root mean square over root mean square."""
    return ((value.double() - expected).square().sum() / expected.square().sum()).sqrt().item()


@pytest.mark.skipif(ON_GPU, reason="bfloat16 rounds otherwise in every order of summing")
def test_whole_frames_are_those_of_the_reference():
    weights = fitting_weights(heads=12, kv_heads=4)
    assert not fits(weights), "the interpreter computes in float32"
    results = []
    for predictor in (PlainPredictor(weights), FusedPredictor(weights)):
        frames = completer(predictor)
        results.append((frames.complete(*hidden_and_code0(), FRAMES), frames.slot_inputs))
    (expected, expected_inputs), (codes, inputs) = results
    assert torch.equal(codes, expected)
    torch.testing.assert_close(inputs, expected_inputs)


@pytest.mark.skipif(not ON_GPU, reason="graphs are captured on a GPU")
def test_whole_frames_from_a_captured_graph_are_those_of_launches():
    weights = fitting_weights()
    assert fits(weights)
    frames = completer(FusedPredictor(weights, FIXED_TILES))
    expected = frames.complete(*hidden_and_code0(), FRAMES).clone()
    expected_inputs = frames.slot_inputs.clone()
    frames.capture([2, 8])
    for _ in range(3):
        frames.slot_inputs.zero_()
        assert torch.equal(frames.complete(*hidden_and_code0(), FRAMES)[: len(REQUESTS)], expected)
        assert torch.equal(frames.slot_inputs[EACH], expected_inputs[EACH])


@pytest.mark.parametrize(
    ("rows", "tiles"),
    [(1, TILES), (11, TILES), (17, FIXED_TILES), (40, TILES), *[(128, TILES), (64, FIXED_TILES)] * ON_GPU],
)
def test_logits_and_cache_are_those_of_the_reference_for_any_number_of_rows(rows, tiles):
    weights = fitting_weights()
    exact, fused = PlainPredictor(wide(weights)), FusedPredictor(weights, tiles)
    expected_cache, cache = exact.weights.new_cache(rows).zero_(), weights.new_cache(rows).zero_()
    generator = torch.Generator().manual_seed(rows)
    for book, positions in ((1, 2), (2, 1)):
        inputs = torch.randn(rows, positions, weights.heads.shape[2], generator=generator).to(DEVICE, DTYPE)
        expected = exact.logits(inputs.double(), expected_cache, book)
        for row in error_of_rows(fused.logits(inputs.clone(), cache, book), expected.double()):
            assert row < TOLERANCE
    assert error(cache, expected_cache) < TOLERANCE


def error_of_rows(values, expected):
    """`error`, of each row."""
    return [error(value, right) for value, right in zip(values, expected, strict=True)]


def test_with_fixed_tiles_the_number_of_rows_changes_no_bit_of_a_row():
    weights = fitting_weights()
    predictor = FusedPredictor(weights, FIXED_TILES)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(18, 2, weights.heads.shape[2], generator=generator).to(DEVICE, DTYPE)
    together = predictor.logits(inputs.clone(), weights.new_cache(18), 1)
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


@pytest.mark.parametrize("change", ["float32", "inputs", "outputs", "head_dim"])
def test_weights_that_the_kernels_do_not_take_are_left_to_the_reference(change):
    config = fitting_config(8, 4)
    changed = {"inputs": {"hidden_size": 256}, "outputs": {"vocab_size": 50}, "head_dim": {"head_dim": 192}}
    config = replace(config, code_predictor_config=replace(config.code_predictor_config, **changed.get(change, {})))
    dtype = torch.float32 if change == "float32" else torch.bfloat16
    assert not fits(frame_weights(random_talker(config, dtype=dtype)))
    assert fits(frame_weights(random_talker(fitting_config(8, 4), dtype=torch.bfloat16)))
