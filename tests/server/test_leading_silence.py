"""An answer begins with its first sound, whatever pieces its samples come in."""

import numpy as np
import pytest

from duotone.server.catalog import Catalog
from duotone.server.cloning import Cloning
from duotone.server.config import Settings, load_settings
from duotone.server.leading_silence import KEPT_SAMPLES, MOST_SAMPLES, WINDOW_SAMPLES, LeadingSilence
from duotone.server.narration import Narrator
from duotone.server.protocol import SpeechRequest
from duotone.stages.types import SAMPLES_PER_FRAME

from .fake_pipeline import plan_of

SOUND, NEARLY_SILENCE = 100, 20
"""Samples of -50 and of -64 dB."""


def samples(*parts: tuple[int, int]) -> bytes:
    """Of levels, each for a number of samples."""
    return np.concatenate([np.full(count, level, "<i2") for level, count in parts]).tobytes()


def skipped(answer: bytes, chunk_samples: int) -> bytes:
    silence, size = LeadingSilence(skips=True), 2 * chunk_samples
    heard = [silence.push(answer[at : at + size]) for at in range(0, len(answer), size)]
    return b"".join([*heard, silence.finish()])


@pytest.mark.parametrize("chunk_samples", [1, WINDOW_SAMPLES, 1920, 100_000])
@pytest.mark.parametrize(
    ("silent", "left"), [(0, 0), (KEPT_SAMPLES, KEPT_SAMPLES), (2400, KEPT_SAMPLES), (2400 + 7, KEPT_SAMPLES + 7)]
)
def test_40_ms_are_left_of_the_silence_in_front_of_the_first_sound(silent, left, chunk_samples):
    sound = samples((SOUND, 3000), (0, 5000), (SOUND, 10))
    answer = samples((NEARLY_SILENCE, silent)) + sound
    assert skipped(answer, chunk_samples) == samples((NEARLY_SILENCE, left)) + sound


def test_what_comes_behind_the_first_sound_comes_at_once():
    silence = LeadingSilence(skips=True)
    assert silence.push(samples((0, 1920))) == b""
    assert silence.push(samples((0, 480), (SOUND, 1440))) == samples((0, KEPT_SAMPLES), (SOUND, 1440))
    assert silence.push(samples((0, 1920))) == samples((0, 1920))


@pytest.mark.parametrize("length", [0, 1, 1920, MOST_SAMPLES - 1, MOST_SAMPLES, 3 * MOST_SAMPLES])
def test_an_answer_without_any_sound_is_heard_whole(length):
    assert skipped(samples((0, length)), 1920) == samples((0, length))


def test_a_silence_of_half_a_second_is_meant():
    answer = samples((0, MOST_SAMPLES), (SOUND, 10))
    assert skipped(answer, 1920) == answer


@pytest.mark.parametrize(
    ("flags", "skips"),
    [
        ({}, True),
        ({"model": "some/voice"}, False),
        ({"text.leading_silence": "keep"}, False),
        ({"model": "some/voice", "text.leading_silence": "skip"}, True),
    ],
)
def test_it_is_skipped_for_the_bundled_voice_unless_it_is_set(flags, skips):
    assert load_settings(None, flags, {}).skips_leading_silence is skips


class TestOfANarration:
    @pytest.fixture
    def narrate(self, model, pipeline):
        settings = Settings(text={"leading_silence": "skip", "normalise": "off", "max_piece_chars": 20, "pause_s": 0})
        catalog = Catalog(settings, model)
        narrator = Narrator(settings, catalog, Cloning(settings, catalog, None), plan_of, pipeline)

        def frame(text: str, index: int) -> bytes:
            return samples((0 if text[index] == "x" else SOUND, SAMPLES_PER_FRAME))

        pipeline.frame = frame
        return lambda text, **fields: narrator.begin("r", SpeechRequest(model="tts-1", input=text, **fields))

    async def test_only_the_first_piece_begins_with_its_first_sound(self, narrate, pipeline):
        narration = await narrate("xne and one are two. xwo and two are four.")
        chunks = [chunk async for chunk in narration]
        frames = [len(stream.text) for stream in pipeline.streams]
        assert len(frames) == 3  # the second is cut at a word
        assert chunks[0] == samples((0, KEPT_SAMPLES), (SOUND, SAMPLES_PER_FRAME))
        assert len(chunks) == sum(frames) - 1
        assert chunks[frames[0] - 1] == samples((0, SAMPLES_PER_FRAME))
        assert narration.usage.output_tokens == sum(frames)

    @pytest.mark.parametrize("fields", [{"min_new_frames": 2}, {"max_new_frames": 2}])
    async def test_who_asks_for_frames_gets_them(self, narrate, fields):
        chunks = [chunk async for chunk in await narrate("xa", **fields)]
        assert chunks == [samples((0, SAMPLES_PER_FRAME)), samples((SOUND, SAMPLES_PER_FRAME))]

    async def test_an_answer_without_any_sound_is_not_empty(self, narrate):
        chunks = [chunk async for chunk in await narrate("xx")]
        assert chunks == [samples((0, 2 * SAMPLES_PER_FRAME))]

    async def test_what_is_cancelled_says_nothing_more(self, narrate):
        narration = await narrate("xx")
        narration.cancel()
        assert [chunk async for chunk in narration] == []
