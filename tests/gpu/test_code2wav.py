"""Code2Wav on a GPU, through its engine: graphs, pinned memory, a launch ahead."""

from pathlib import Path

import numpy as np
import pytest
import torch

from duotone.server.config import BUNDLED_VOICE
from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.code2wav.decoder import load_decoder
from duotone.stages.code2wav.engine import Code2WavEngine
from duotone.stages.messages import Abort
from duotone.stages.pipeline import Code2WavOptions

from ..golden_outputs import CUSTOM_VOICE
from ..stages.code2wav.hearing import CASES, Ear, assert_heard, decode, speak_all

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
