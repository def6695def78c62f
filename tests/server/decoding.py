"""Reads answers back, as listeners do: libav for every format, found by its content alone."""

import io
from dataclasses import dataclass

import av
import numpy as np

SAMPLE_RATE = 24_000

STREAMED_DELAY_SAMPLES = {"mp3": 1105, "aac": 1024}
"""What decoders put before the first sample where no header tells them to drop it: LAME's delay, AAC's first block."""
CODEC_FRAME_SAMPLES = {"mp3": 576 + 46, "aac": 1024}
"""A codec frame at 24 kHz, by which an answer may be longer; LAME sometimes ends 46 samples after its last frame."""


@dataclass(frozen=True)
class Decoded:
    """An answer's samples, float32 in [-1, 1]; the seconds that its header states, None where it states none."""

    codec: str
    sample_rate: int
    samples: np.ndarray
    stated_s: float | None

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


def decoded(content: bytes) -> Decoded:
    with av.open(io.BytesIO(content)) as container:
        (stream,) = container.streams
        # WAV and FLAC come as integers.
        frames = [frame.to_ndarray().reshape(-1) for frame in container.decode(stream)]
        stated_s = container.duration / av.time_base if container.duration else None
        samples = np.concatenate(frames)
        if samples.dtype.kind == "i":
            samples = samples.astype(np.float32) / np.float32(1 << 8 * samples.dtype.itemsize - 1)
        return Decoded(stream.codec_context.name, stream.rate, samples, stated_s)


def assert_lasts(answer: Decoded, format: str, samples: int, complete: bool = False) -> None:
    """The answer holds so many samples at 24 kHz, exactly where the format can say so, else to a codec frame."""
    held = len(answer.samples) / (answer.sample_rate // SAMPLE_RATE)
    if format in ("opus", "flac", "wav"):
        assert held == samples
        return
    delay = 0 if (format, complete) == ("mp3", True) else STREAMED_DELAY_SAMPLES[format]
    assert samples + delay <= held <= samples + delay + CODEC_FRAME_SAMPLES[format]
