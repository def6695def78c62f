"""Speed: the length that it gives, the pitch that it keeps, and the ends of the sound."""

import numpy as np
import pytest

from duotone.server.tempo import Tempo
from duotone.stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME

SPEEDS = [0.25, 0.3, 0.5, 0.75, 0.99, 1.25, 1.5, 2.0, 2.5, 4.0]


def tone(samples: int, hertz: float = 440) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * hertz * np.arange(samples) / SAMPLE_RATE)).astype("<i2")


def paced(sound: np.ndarray, speed: float, chunk_samples: int = SAMPLES_PER_FRAME) -> np.ndarray:
    tempo = Tempo(speed)
    chunks = [tempo.push(sound[at : at + chunk_samples].tobytes()) for at in range(0, len(sound), chunk_samples)]
    return np.frombuffer(b"".join(chunks) + tempo.finish(), "<i2")


def loudness(sound: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sound.astype(float)))))


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_length_is_divided_to_the_sample(speed):
    for samples in (SAMPLES_PER_FRAME, 4800, 9 * SAMPLES_PER_FRAME + 5, 60_000):
        assert len(paced(tone(samples), speed)) == round(samples / speed)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("hertz", [110, 440, 3000])
def test_the_pitch_stays(speed, hertz):
    sound = paced(tone(96_000, hertz), speed)
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    assert np.argmax(spectrum) * SAMPLE_RATE / len(sound) == pytest.approx(hertz, rel=0.01)
    assert loudness(sound) == pytest.approx(8000 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("speed", SPEEDS)
def test_what_is_said_last_is_heard_last(speed):
    sound = np.concatenate([np.zeros(24_000, "<i2"), tone(4800)])
    heard = paced(sound, speed)
    end = round(4800 / speed)
    assert loudness(heard[-end // 4 :]) > 0.6 * loudness(tone(4800))
    assert loudness(heard[: len(heard) // 2]) == 0


@pytest.mark.parametrize("speed", [0.25, 1.5, 4.0])
def test_how_samples_are_cut_changes_nothing(speed):
    sound = tone(30_000)
    assert np.array_equal(paced(sound, speed, 480), paced(sound, speed, 30_000))


@pytest.mark.parametrize("speed", SPEEDS)
def test_sound_comes_while_more_is_made(speed):
    tempo = Tempo(speed)
    assert any(tempo.push(tone(SAMPLES_PER_FRAME).tobytes()) for _ in range(4))
