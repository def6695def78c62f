"""The glottis of an utterance, from the teacher's pitch: pulses, and the codes that tell where they fall."""

from dataclasses import dataclass

import numpy as np

from .codes import LOWEST_HZ, PHASES, STEPS, coded_hz, pitch_codes
from .sizes import FRAME_SAMPLES, SAMPLE_RATE

HOP_SAMPLES = 300
"""Between two values of the teacher's pitch."""
STEP_SAMPLES = FRAME_SAMPLES // STEPS
VOICED_HZ = 40  # below, the teacher's synthesis makes no pulses
HIGHEST_PULSE_HZ = 11_000


@dataclass(frozen=True)
class Voicing:
    """The glottis of one sentence, exactly as the codes tell it."""

    pulses: np.ndarray  # float32 [S]
    pitch: np.ndarray  # uint8, codes at the ends of 40 ms
    cycles: np.ndarray  # uint8, codes in the middles of 20 ms


def voicing(pitch_hz: np.ndarray, before: int) -> Voicing:
    """Of the teacher's pitch every 12.5 ms (0 unvoiced); steps are counted from `before` samples ahead of it.

    The pitch becomes that of the codes, linear between them; the phase advances by whole thirty-seconds of a cycle
    from one step's middle to the next. Else pulses as the teacher's own `dsp.pulses` makes them.
    """
    sample = np.arange(len(pitch_hz) * HOP_SAMPLES)
    column, place = np.arange(len(pitch_hz)), (sample + 0.5) / HOP_SAMPLES - 0.5
    vibrating = np.interp(place, column, pitch_hz) > VOICED_HZ
    voiced = np.flatnonzero(pitch_hz > VOICED_HZ)
    ends = np.arange(2 * STEP_SAMPLES - before % (2 * STEP_SAMPLES), len(sample) + 1, 2 * STEP_SAMPLES)
    around = np.clip(ends[:, None] / HOP_SAMPLES - 0.5 + np.linspace(-1, 1, 5), 0, column[-1])
    hertz = np.interp(around, voiced, pitch_hz[voiced]).mean(1) if len(voiced) else np.full(len(ends), LOWEST_HZ)
    pitch = pitch_codes(hertz)
    cycles = np.cumsum(np.interp(sample + 1, ends, coded_hz(pitch))) / SAMPLE_RATE
    middles = np.arange((STEP_SAMPLES // 2 - before) % STEP_SAMPLES, len(sample), STEP_SAMPLES)
    phases = np.cumsum(np.rint(np.diff(cycles[middles], prepend=0) * PHASES))
    cycles += np.interp(sample, middles, phases / PHASES - cycles[middles])
    sounding = np.interp(around, column, pitch_hz) > VOICED_HZ
    return Voicing(
        _pulses(cycles, vibrating),
        np.where(sounding.any(1), pitch, 0).astype(np.uint8),
        np.where(vibrating[middles], 1 + phases % PHASES, 0).astype(np.uint8),
    )


def _pulses(cycles: np.ndarray, vibrating: np.ndarray) -> np.ndarray:
    """All harmonics up to `HIGHEST_PULSE_HZ` of a phase in cycles, at unit amplitude, float32."""
    hertz = np.maximum(np.gradient(cycles) * SAMPLE_RATE, VOICED_HZ)
    angle = 2 * np.pi * (cycles % 1)
    harmonics = np.floor(HIGHEST_PULSE_HZ / hertz) + 0.5
    below = 2 * np.sin(angle / 2)
    at_pulse = np.abs(below) <= 2e-3
    train = np.where(at_pulse, harmonics, np.sin(harmonics * angle) / np.where(at_pulse, 1, below)) - 0.5
    return (train * vibrating).astype(np.float32)
