"""Code2Wav on a GPU, through its engine: graphs, pinned memory, a launch ahead."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from duotone.server.config import BUNDLED_VOICE
from duotone.stages.architecture import CodecConfig
from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.code2wav.decoder import CodecDecoder, load_decoder
from duotone.stages.code2wav.engine import Code2WavEngine
from duotone.stages.code2wav.fused import FusedDecoder
from duotone.stages.code2wav.layers import freeze
from duotone.stages.messages import Abort
from duotone.stages.pipeline import Code2WavOptions

from ..golden_outputs import CUSTOM_VOICE
from ..stages.code2wav.hearing import CASES, Ear, assert_heard, decode, speak_all
from ..vllm.test_code2wav import DEVICE, decode_chunks
from .hollow import PUBLISHED_1B7

LARK_CODES = Path(__file__).parent / "lark_codes.npy"
REQUIRED_DB = 40


def start(voice, **options):
    return Code2WavEngine(read_checkpoint(voice), Code2WavOptions(devices=("cuda:0",), **options))


@pytest.mark.parametrize("max_batch_frames", [24, 80])
def test_streams_of_any_length_and_age_are_heard_as_if_alone(max_batch_frames):
    """Batches of every size, of which most are no power of two."""
    ear = speak_all(start(CUSTOM_VOICE, slots=9, max_chunk_frames=8, max_batch_frames=max_batch_frames))
    assert sorted(ear.ended) == list(range(len(CASES)))
    for key, case in enumerate(CASES.values()):
        assert_heard(ear.heard[key], case)


def test_stream_in_the_slot_of_one_that_was_aborted_under_way_hears_nothing_of_it():
    ear = Ear(start(CUSTOM_VOICE, slots=1, max_batch_frames=8))
    ear.engine.accept(decode(1, CASES["codec_08"].codes))
    for _ in range(3):
        ear.step()
    ear.engine.accept(Abort([1]))
    ear.engine.accept(decode(2, CASES["codec_05"].codes, last=True))
    assert_heard(ear.run().heard[2], CASES["codec_05"])


def test_bundled_voice_in_bfloat16_has_the_required_ratio_of_signal_to_noise():
    codes = np.load(LARK_CODES)
    checkpoint = read_checkpoint(BUNDLED_VOICE)
    plain = load_decoder(checkpoint.codec, checkpoint.codec_weights, torch.float32, "cpu")
    with torch.inference_mode():
        expected = plain(torch.from_numpy(codes.astype(np.int64))[None])[0].numpy()
    ear = Ear(start(BUNDLED_VOICE, dtype="bfloat16"))
    ear.engine.accept(decode(1, codes, last=True))
    noise = ear.run().heard[1] / 32_767 - expected
    assert 10 * np.log10(np.square(expected).mean() / np.square(noise).mean()) >= REQUIRED_DB


@torch.inference_mode()
def random_decoder(config):
    """With weights so small that sound passes nearly as it is, and rounding grows no larger on its way."""
    torch.manual_seed(0)
    decoder = CodecDecoder(config).requires_grad_(False)
    for parameter in decoder.parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        torch.nn.init.normal_(parameter, std=0.5 * fan_in**-0.5)
    for scale in (name for name, _ in decoder.named_parameters() if name.endswith(("norm.weight", "layernorm.weight"))):
        decoder.get_parameter(scale).fill_(1.0)
    freeze(decoder.to(DEVICE))
    return decoder


@torch.inference_mode()
@pytest.mark.parametrize("streams", [1, 64])
def test_published_sizes_in_bfloat16_have_the_required_ratio_of_signal_to_noise(streams):
    """Few and many rows: products of every tile, residual units of 768, 384, 192 and 96 channels."""
    raw = json.loads((PUBLISHED_1B7 / "speech_tokenizer" / "config.json").read_bytes())["decoder_config"]
    config = msgspec.convert(raw, CodecConfig)
    plain = random_decoder(config)
    codes = np.random.default_rng(0).integers(0, config.codebook_size, (streams, 4, 16), dtype=np.int16)
    expected = plain(torch.from_numpy(codes.astype(np.int64)).to(DEVICE)).cpu().numpy()
    fused = FusedDecoder(plain, config, torch.bfloat16, streams, 4)
    heard = np.stack(decode_chunks(fused, [(slot, 0, codes[slot]) for slot in range(streams)]))
    noise = heard - expected
    assert 0.01 < np.square(expected).mean() ** 0.5 < 0.5
    assert 10 * np.log10(np.square(expected).mean() / np.square(noise).mean()) >= REQUIRED_DB
