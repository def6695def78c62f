"""The fused decoder computes what the plain modules do, on the GPU if there is one, else in Triton's interpreter."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.code2wav.decoder import load_decoder
from duotone.stages.code2wav.fused import Batch, FusedDecoder, FusedUnit
from duotone.stages.code2wav.graphs import batch_sizes
from duotone.stages.code2wav.layers import ResidualUnit, SnakeBeta, freeze
from duotone.stages.code2wav.products import Rows
from duotone.stages.errors import CheckpointError
from duotone.stages.types import SAMPLES_PER_FRAME

from ..golden_outputs import CUSTOM_VOICE, codec_cases

pytestmark = pytest.mark.filterwarnings("default")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {case.name: case for case in codec_cases()}
ROUNDING = {torch.float32: 2e-5, torch.float16: 5e-3}
"""Triton's interpreter cannot multiply bfloat16."""
SLOTS = 3


@pytest.fixture(scope="module", params=ROUNDING, ids=str)
def fused(request):
    """(the fused decoder in a dtype, what its samples may differ by)"""
    checkpoint = read_checkpoint(CUSTOM_VOICE)
    plain = load_decoder(checkpoint.codec, checkpoint.codec_weights, torch.float32, DEVICE)
    return FusedDecoder(plain, checkpoint.codec, request.param, SLOTS, 4), ROUNDING[request.param]


@torch.inference_mode()
def decode_chunks(fused, chunks, dtype=torch.float32):
    """The samples of each of (slot, position, codes [frames, 16])."""
    lengths = [len(codes) for _, _, codes in chunks]
    count, frames = len(chunks), sum(lengths)
    numbers = np.zeros((5, frames + 1), np.int32)
    numbers[0, :count] = [slot if position else fused.silent_slot for slot, position, _ in chunks]
    numbers[1, :count], numbers[2, :count] = [slot for slot, _, _ in chunks], [position for _, position, _ in chunks]
    numbers[3, :frames] = np.repeat(np.arange(count), lengths)
    numbers[4, 1:] = frames
    numbers[4, 1 : count + 1] = np.cumsum(lengths)
    sources, slots, positions, owners, begins = torch.from_numpy(numbers).to(DEVICE)
    codes = torch.from_numpy(np.concatenate([codes for _, _, codes in chunks])).to(DEVICE, torch.int32).contiguous()
    samples = torch.empty(frames * SAMPLES_PER_FRAME, dtype=dtype, device=DEVICE)
    batch = Batch(codes, owners[:frames], begins, sources[:frames], slots[:frames], positions[:frames])
    fused(batch, samples)
    return np.split(samples.cpu().numpy(), np.cumsum(lengths)[:-1] * SAMPLES_PER_FRAME)


def assert_heard(samples, case, first_frame, rounding):
    begin = first_frame * SAMPLES_PER_FRAME
    np.testing.assert_allclose(samples, case.wav[begin : begin + len(samples)], rtol=0, atol=rounding)


def test_chunks_of_mixed_streams_are_the_references(fused):
    """A slot used anew, streams of different age and different frames beside each other, one that idles."""
    decoder, rounding = fused
    one, two = CASES["codec_05"], CASES["codec_04"]
    (first,) = decode_chunks(decoder, [(1, 0, two.codes[:1])])
    assert_heard(first, two, 0, rounding)
    first, _ = decode_chunks(decoder, [(1, 0, one.codes[:2]), (decoder.idle_slot, 0, one.codes[4:5])])
    assert_heard(first, one, 0, rounding)
    later, young = decode_chunks(decoder, [(1, 2, one.codes[2:3]), (0, 0, two.codes[:3])])
    assert_heard(later, one, 2, rounding)
    assert_heard(young, two, 0, rounding)


def test_window_of_attention_moves_with_the_stream(fused):
    """The golden window is 9 and chunks have at most 4: after 12 frames the ring of keys has come round."""
    decoder, rounding = fused
    case = CASES["codec_06"]
    heard = [decode_chunks(decoder, [(2, first, case.codes[first:][:4])])[0] for first in (0, 4, 8)]
    heard += decode_chunks(decoder, [(2, 12, case.codes[12:13])])
    assert_heard(np.concatenate(heard), case, 0, rounding)


def test_samples_become_int16_clamped_and_rounded_to_nearest(fused):
    decoder, _ = fused
    codes = CASES["codec_05"].codes[:1]
    (floats,), (integers,) = (
        decode_chunks(decoder, [(0, 0, codes)]),
        decode_chunks(decoder, [(0, 0, codes)], torch.int16),
    )
    assert np.array_equal(integers, np.rint(floats * np.float32(32_767)).astype(np.int16))


def test_heads_that_cannot_be_rotated_are_refused():
    checkpoint = read_checkpoint(CUSTOM_VOICE)
    plain = load_decoder(checkpoint.codec, checkpoint.codec_weights, torch.float32, "cpu")
    with pytest.raises(CheckpointError, match="decoder_config: head_dim 13"):
        FusedDecoder(plain, replace(checkpoint.codec, head_dim=13), torch.float32, 1, 1)


@pytest.mark.parametrize("most", [1, 3, 24, 160, 256])
def test_batch_sizes_reach_the_largest_in_steps_of_a_quarter(most):
    sizes = batch_sizes(most)
    assert (sizes[0], sizes[-1]) == (1, most)
    assert all(small < large <= max(small + 1, 1.25 * small) for small, large in itertools.pairwise(sizes))


@torch.inference_mode()
@pytest.mark.parametrize("channels", [24, 48, 64, 96, 192, 384])
def test_residual_unit_of_any_width_in_sixteen_bits_is_the_references(channels):
    """Each width has a tile of its own; the published ones among them are 96, 192 and 384."""
    frames, per_frame, dilation = 8, 40, 3
    torch.manual_seed(channels)
    parts = torch.nn.ModuleList([ResidualUnit(channels, dilation), SnakeBeta(channels)])
    x = torch.randn(1, channels, frames * per_frame)
    for parameter in parts.parameters():
        torch.nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.3)
    freeze(parts.requires_grad_(False).to(DEVICE))
    unit, after = parts
    x = x.to(DEVICE)
    expected, activated = unit(x), unit.act1(x)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cannot multiply bfloat16
    owners = torch.zeros(frames, dtype=torch.int32, device=DEVICE)
    fused = FusedUnit(unit, after, dtype)
    context = fused.dilated.context
    padded = torch.nn.functional.pad(activated[0].T, (0, 0, context, 0)).to(dtype).contiguous()
    before = Rows(x[0].T.to(dtype).contiguous(), owners, per_frame)
    raw, out = before.fresh(channels), before.fresh(channels)
    fused(Rows(padded, owners, per_frame, context), before, raw, out)
    for made, right in ((raw, expected), (out, after(expected))):
        noise = made.values.float() - right[0].T
        assert right.square().mean() > 1e3 * noise.square().mean()
