"""Pipecat's OpenAI service in a pipeline of its own: PCM at 24 kHz between its frames of start and stop."""

import pytest

pytest.importorskip("pipecat")

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test

TEXT = "Hello there, this is a test."


async def speak(base_url: str, **choices) -> list:
    """What comes out below and above the service for one text."""
    service = OpenAITTSService(
        api_key="none", base_url=base_url, sample_rate=24_000, settings=OpenAITTSService.Settings(**choices)
    )
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame(TEXT), EndFrame()], send_end_frame=False)
    return [*down, *up]


async def test_its_default_request_is_spoken(base_url, spoken_samples):
    frames = await speak(base_url)
    audio = [frame for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    assert {(frame.sample_rate, frame.num_channels) for frame in audio} == {(24_000, 1)}
    heard = b"".join(frame.audio for frame in audio)
    assert len(heard) == 2 * spoken_samples() > 0
    assert any(heard)
    kinds = [type(frame) for frame in frames]
    assert kinds.index(TTSStartedFrame) < kinds.index(TTSAudioRawFrame) < kinds.index(TTSStoppedFrame)
    assert ErrorFrame not in kinds


async def test_speed_and_voice(base_url, spoken_samples):
    frames = await speak(base_url, voice="nova", speed=1.5)
    heard = b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))
    assert len(heard) == 2 * round(spoken_samples() / 1.5)


async def test_a_refusal_is_an_error_frame(base_url):
    frames = await speak(base_url, model="nope")
    assert any(isinstance(frame, ErrorFrame) for frame in frames)
