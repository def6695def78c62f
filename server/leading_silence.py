"""An answer begins with its first sound: the silence that a voice begins with only keeps its listener waiting."""

import numpy as np

from ..stages.types import SAMPLE_BYTES, SAMPLE_RATE

WINDOW_SAMPLES = SAMPLE_RATE // 200
SOUND_RMS = 1e-3 * 2**15
"""A window, 5 ms, is no silence from here on: -60 dB."""
KEPT_SAMPLES = SAMPLE_RATE // 25
"""40 ms in front of the first window with sound: nothing of how a sound begins is lost."""
MOST_SAMPLES = SAMPLE_RATE // 2
"""A longer silence is meant, and heard."""


class LeadingSilence:
    """Leaves out what silence samples, s16le mono, begin with, but for the last 40 ms of it; or nothing."""

    def __init__(self, skips: bool) -> None:
        self._held = b""
        self._over = not skips

    def push(self, samples: bytes) -> bytes:
        """What is to be heard by now; nothing while there may be sound after less than half a second."""
        if self._over:
            return samples
        self._held += samples
        windows = np.frombuffer(self._held, "<i2")[: len(self._held) // SAMPLE_BYTES // WINDOW_SAMPLES * WINDOW_SAMPLES]
        power = np.square(windows.reshape(-1, WINDOW_SAMPLES), dtype=np.float64).mean(1)
        sounding = np.flatnonzero(power >= SOUND_RMS**2)
        if len(sounding):
            first = max(0, int(sounding[0]) * WINDOW_SAMPLES - KEPT_SAMPLES)
            return self.finish()[first * SAMPLE_BYTES :]
        return self.finish() if len(self._held) >= MOST_SAMPLES * SAMPLE_BYTES else b""

    def finish(self) -> bytes:
        """All that was held back, where no sound has come."""
        held, self._held, self._over = self._held, b"", True
        return held
