"""Faster or slower speech at the same pitch: libav's `atempo` over samples that come bit by bit."""

import math
from fractions import Fraction

import av
import numpy as np
from av.filter import Graph

from ..stages.types import SAMPLE_RATE

_LEAST_STEP, _LARGEST_STEP = 0.5, 2.0
"""One filter skips samples above 2 and takes nothing below 0.5: then two in a row do their root each."""
_SAMPLE_BYTES = 2
_TAIL = bytes(_SAMPLE_BYTES * SAMPLE_RATE // 5)
"""Silence behind the last sample: the filter keeps up to its window back at the end, which then is of this."""


def audio_frame(samples: bytes, begins_at: int) -> av.AudioFrame:
    """Samples, s16le mono at 24 kHz, as libav takes them; `begins_at` is the number of samples before them."""
    frame = av.AudioFrame.from_ndarray(np.frombuffer(samples, "<i2").reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = SAMPLE_RATE
    frame.time_base = Fraction(1, SAMPLE_RATE)
    frame.pts = begins_at
    return frame


class Tempo:
    """One answer's samples, s16le mono at 24 kHz, at `speed` 0.25 … 4 times their tempo.

    As many come out as went in, divided by the speed and rounded.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._taken_samples = 0
        self._given_samples = 0
        steps = [speed] if _LEAST_STEP <= speed <= _LARGEST_STEP else [math.sqrt(speed)] * 2
        self._graph = Graph()
        source = self._graph.add_abuffer(
            sample_rate=SAMPLE_RATE, format="s16", layout="mono", time_base=Fraction(1, SAMPLE_RATE)
        )
        chain = [source, *(self._graph.add("atempo", str(step)) for step in steps), self._graph.add("abuffersink")]
        self._graph.link_nodes(*chain).configure()

    def push(self, samples: bytes) -> bytes:
        """Take samples; return what is ready."""
        if not samples:
            return b""
        frame = audio_frame(samples, self._taken_samples)
        self._taken_samples += frame.samples
        self._graph.push(frame)
        ready = self._pull()
        self._given_samples += len(ready) // _SAMPLE_BYTES
        return ready

    def finish(self) -> bytes:
        """The rest, cut to the exact length."""
        left_samples = round(self._taken_samples / self._speed) - self._given_samples
        self._graph.push(audio_frame(_TAIL, self._taken_samples))
        self._graph.push(None)
        return self._pull()[: _SAMPLE_BYTES * max(left_samples, 0)]

    def _pull(self) -> bytes:
        """All that the filters have ready."""
        ready = bytearray()
        while True:
            try:
                frame = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return bytes(ready)
            assert isinstance(frame, av.AudioFrame)
            ready += frame.to_ndarray().astype("<i2", copy=False).tobytes()
