"""LiveKit's OpenAI plugin: its default request (MP3 in events), the audio stream of tts-1, and every format."""

import numpy as np
import pytest

openai = pytest.importorskip("livekit.plugins.openai")
agents = pytest.importorskip("livekit.agents")

TEXT = "Hello there, this is a test."

LOST_AND_ADDED_SAMPLES = {
    **{None: (0, 1151), "mp3": (0, 1151), "opus": (480, 0), "aac": (0, 1023), "flac": (1920, 0)},
    **{"wav": (0, 0), "pcm": (0, 240)},
}
"""What its decoder makes of an answer: it loses the first packet, on which it looks for the codec; what MP3 and AAC add
is their delay and the fill of their last frame, to PCM it adds 10 ms of silence."""


async def speak(tts) -> tuple[np.ndarray, list]:
    """The samples, and what the plugin measured."""
    metrics = []
    tts.on("metrics_collected", metrics.append)
    async with tts, tts.synthesize(TEXT) as stream:
        frames = [event.frame async for event in stream]
    assert all((frame.sample_rate, frame.num_channels) == (24_000, 1) for frame in frames)
    return np.concatenate([np.frombuffer(frame.data, "<i2") for frame in frames]), metrics


@pytest.mark.parametrize("format", [None, "mp3", "opus", "aac", "flac", "wav", "pcm"])
@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
async def test_it_hears_every_format_in_events_and_as_a_stream(base_url, spoken_samples, model, format):
    chosen = {} if format is None else {"response_format": format}
    heard, metrics = await speak(openai.TTS(base_url=base_url, api_key="none", model=model, **chosen))
    made = spoken_samples()
    lost, added = LOST_AND_ADDED_SAMPLES[format]
    assert made > 0
    assert made - lost <= len(heard) <= made + added
    assert heard.any()
    if model == "gpt-4o-mini-tts":
        assert metrics[0].output_tokens == made // 1920
        assert metrics[0].input_tokens > 0


async def test_speed_and_voice(base_url, spoken_samples):
    heard, _ = await speak(openai.TTS(base_url=base_url, api_key="none", voice="ada", speed=2.0, response_format="wav"))
    assert len(heard) == spoken_samples() // 2


async def test_a_refusal_is_an_error(base_url):
    with pytest.raises(agents.APIStatusError) as refusal:
        await speak(openai.TTS(base_url=base_url, api_key="none", voice="nope"))
    assert refusal.value.status_code == 400
