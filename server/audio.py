"""Audio formats: from the pipeline's samples (s16le mono, 24 kHz) to the bytes that clients asked for.

A format is an encoder that takes samples as they come. A new one is a class with the three methods of Encoder,
and a line in FORMATS.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..stages.types import SAMPLE_RATE
from .protocol import ResponseFormat

SAMPLE_BYTES = 2
CHANNELS = 1
_UNKNOWN_SIZE = 0xFFFFFFFF
_PCM_TAG = 1
_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_RIFF_BYTES = _WAV_HEADER.size - 8
"""What the RIFF size counts besides the samples: the header without its own first two fields."""


class Encoder(Protocol):
    """One answer's encoder: `start` once, `encode` for all samples in order, `finish` once. Any may return nothing."""

    def start(self) -> bytes:
        """What stands before the first samples."""
        ...

    def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready."""
        ...

    def finish(self) -> bytes:
        """The rest: what was held back, and what stands after the last samples."""
        ...


class PcmEncoder:
    """The samples as they are."""

    def __init__(self, audio_bytes: int | None) -> None:
        pass

    def start(self) -> bytes:
        return b""

    def encode(self, samples: bytes) -> bytes:
        return samples

    def finish(self) -> bytes:
        return b""


class WavEncoder(PcmEncoder):
    """The samples behind a RIFF header. Its sizes are true where they are known, else the largest number there is."""

    def __init__(self, audio_bytes: int | None) -> None:
        self._audio_bytes = audio_bytes

    def start(self) -> bytes:
        riff_bytes = audio_bytes = _UNKNOWN_SIZE
        if self._audio_bytes is not None:
            riff_bytes, audio_bytes = _RIFF_BYTES + self._audio_bytes, self._audio_bytes
        frame_bytes = CHANNELS * SAMPLE_BYTES
        return _WAV_HEADER.pack(
            *(b"RIFF", riff_bytes, b"WAVE"),
            *(b"fmt ", 16, _PCM_TAG, CHANNELS, SAMPLE_RATE, SAMPLE_RATE * frame_bytes, frame_bytes, 8 * SAMPLE_BYTES),
            *(b"data", audio_bytes),
        )


@dataclass(frozen=True)
class Format:
    """A response format. `encoder` takes the number of bytes of all samples to come, None where it is not known yet."""

    media_type: str
    encoder: Callable[[int | None], Encoder]


FORMATS: dict[ResponseFormat, Format] = {
    "wav": Format("audio/wav", WavEncoder),
    "pcm": Format("audio/pcm", PcmEncoder),
}


def encode_complete(format: Format, samples: bytes) -> bytes:
    """A complete file of samples, s16le."""
    encoder = format.encoder(len(samples))
    return encoder.start() + encoder.encode(samples) + encoder.finish()
