"""Audio formats: from the pipeline's samples (s16le mono, 24 kHz) to the bytes that clients asked for.

A format is an encoder that takes samples as they come. A new one is a class with the two methods of Encoder and a line
in FORMATS. `Transcoder` is what answers use: speed and encoder of one answer, off the event loop.
"""

import asyncio
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..stages.types import SAMPLE_BYTES, SAMPLE_RATE
from .encoders import AAC, FLAC, MP3, OPUS, AvEncoder
from .protocol import ResponseFormat
from .tempo import Tempo

CHANNELS = 1
NATURAL_SPEED = 1.0
_UNKNOWN_SIZE = 0xFFFFFFFF
_PCM_TAG = 1
_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_RIFF_BYTES = _WAV_HEADER.size - 8
"""What the RIFF size counts besides the samples: the header without its own first two fields."""


class Encoder(Protocol):
    """One answer's encoder: `encode` for all samples in order, then `finish` once. Either may return nothing."""

    def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready."""
        ...

    def finish(self) -> bytes:
        """The rest: what was held back, and what stands after the last samples."""
        ...


class PcmEncoder:
    """The samples as they are."""

    def __init__(self, complete: bool) -> None:
        pass

    def encode(self, samples: bytes) -> bytes:
        return samples

    def finish(self) -> bytes:
        return b""


class WavEncoder:
    """The samples behind a RIFF header. Its sizes are true in a complete file, else the largest number there is."""

    def __init__(self, complete: bool) -> None:
        self._held = bytearray() if complete else None
        self._begun = False

    def encode(self, samples: bytes) -> bytes:
        if self._held is not None:
            self._held += samples
            return b""
        return self._header_once() + samples

    def finish(self) -> bytes:
        if self._held is not None:
            return _wav_header(len(self._held)) + self._held
        return self._header_once()

    def _header_once(self) -> bytes:
        header = b"" if self._begun else _wav_header(None)
        self._begun = True
        return header


def _wav_header(audio_bytes: int | None) -> bytes:
    riff_bytes = _UNKNOWN_SIZE if audio_bytes is None else _RIFF_BYTES + audio_bytes
    frame_bytes = CHANNELS * SAMPLE_BYTES
    return _WAV_HEADER.pack(
        *(b"RIFF", riff_bytes, b"WAVE"),
        *(b"fmt ", 16, _PCM_TAG, CHANNELS, SAMPLE_RATE, SAMPLE_RATE * frame_bytes, frame_bytes, 8 * SAMPLE_BYTES),
        *(b"data", _UNKNOWN_SIZE if audio_bytes is None else audio_bytes),
    )


@dataclass(frozen=True)
class Format:
    """A response format. `encoder` takes whether a complete file is wanted: then all of it may come at the end."""

    media_type: str
    encoder: Callable[[bool], Encoder]
    compressed: bool


FORMATS: dict[ResponseFormat, Format] = {
    "mp3": Format("audio/mpeg", partial(AvEncoder, MP3), compressed=True),
    "opus": Format("audio/ogg", partial(AvEncoder, OPUS), compressed=True),
    "aac": Format("audio/aac", partial(AvEncoder, AAC), compressed=True),
    "flac": Format("audio/flac", partial(AvEncoder, FLAC), compressed=True),
    "wav": Format("audio/wav", WavEncoder, compressed=False),
    "pcm": Format("audio/pcm", PcmEncoder, compressed=False),
}


class Transcoder:
    """One answer's way from samples to bytes, on the event loop. Calls follow one another; a cancelled one is the last.

    What computes runs in `pool`, from the making of the encoder on; the rest is done at once.
    """

    def __init__(self, format: Format, speed: float, complete: bool, pool: Executor) -> None:
        natural = speed == NATURAL_SPEED
        self._pool = None if natural and not format.compressed else pool
        self._make_tempo = None if natural else partial(Tempo, speed)
        self._make_encoder = partial(format.encoder, complete)
        self._tempo: Tempo | None = None
        self._encoder: Encoder | None = None

    async def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready, which may be nothing."""
        return await self._do(partial(self._encode, samples))

    async def finish(self) -> bytes:
        """The rest."""
        return await self._do(self._finish)

    async def _do(self, work: Callable[[], bytes]) -> bytes:
        if self._pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _encode(self, samples: bytes) -> bytes:
        if self._encoder is None:
            self._tempo = self._make_tempo() if self._make_tempo else None
            self._encoder = self._make_encoder()
        return self._encoder.encode(self._tempo.push(samples) if self._tempo else samples)

    def _finish(self) -> bytes:
        rest = self._encode(b"")
        assert self._encoder is not None
        if self._tempo is not None:
            rest += self._encoder.encode(self._tempo.finish())
        return rest + self._encoder.finish()
