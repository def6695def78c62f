"""From the pipeline's samples (s16le mono, 24 kHz) to the bytes of an answer, bit by bit: its speed and its format.

libav encodes and muxes, by PyAV. A new format is a line in FORMATS.
"""

import asyncio
import io
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property, partial

import av
from av.audio import AudioStream

from ..stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME
from .protocol import ResponseFormat
from .tempo import Tempo, audio_frame

CHANNELS = 1
NATURAL_SPEED = 1.0


@dataclass(frozen=True)
class Format:
    """A codec in a container, by libav's names and options. `streaming`: the container's in answers sent while made."""

    media_type: str
    container: str
    codec: str
    compressed: bool = True
    bit_rate: int | None = None
    sample_rate: int = SAMPLE_RATE
    codec_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)
    streaming: Mapping[str, str] = field(default_factory=dict)


FORMATS: dict[ResponseFormat, Format] = {
    "mp3": Format("audio/mpeg", "mp3", "libmp3lame", bit_rate=96_000),
    # libav resamples: Opus knows no 24 kHz stream. A page goes out when the next one is there: pages hold one packet.
    "opus": Format(
        *("audio/ogg", "ogg", "libopus"), bit_rate=48_000, sample_rate=48_000, streaming={"page_duration": "20000"}
    ),
    "aac": Format("audio/aac", "adts", "aac", bit_rate=96_000),
    # One block for each of the pipeline's frames, else its first 80 ms would wait for more.
    "flac": Format("audio/flac", "flac", "flac", codec_options={"frame_size": str(SAMPLES_PER_FRAME)}),
    # Bit exact: without a chunk that names libav.
    "wav": Format("audio/wav", "wav", "pcm_s16le", compressed=False, container_options={"fflags": "+bitexact"}),
    "pcm": Format("audio/pcm", "s16le", "pcm_s16le", compressed=False),
}


class _Outbox:
    """A file for libav that cannot be rewound: it holds what is written until it is taken."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, written: bytes) -> int:
        self._written += written
        return len(written)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


class Encoder:
    """One answer's encoder: `encode` for all samples in order, then `finish` once. Either may return nothing.

    Complete files are written where libav can go back, so their headers tell true lengths; `finish` returns them whole.
    One that is dropped frees its codec at once, in whichever thread lets go of it last.
    """

    def __init__(self, format: Format, complete: bool, speed: float = NATURAL_SPEED) -> None:
        self._sink = io.BytesIO() if complete else _Outbox()
        options = {"flush_packets": "1", "metadata_header_padding": "0", **format.container_options}
        if not complete:
            options |= format.streaming
        self._container = av.open(self._sink, "w", format=format.container, options=options)
        stream = self._container.add_stream(
            format.codec, rate=format.sample_rate, layout="mono", options=dict(format.codec_options)
        )
        assert isinstance(stream, AudioStream)
        if format.bit_rate is not None:
            stream.bit_rate = format.bit_rate
        self._stream = stream
        self._container.start_encoding()
        self._tempo = None if speed == NATURAL_SPEED else Tempo(speed)
        self._taken_samples = 0

    def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready."""
        self._mux(self._tempo.push(samples) if self._tempo else samples)
        return b"" if isinstance(self._sink, io.BytesIO) else self._sink.take()

    def finish(self) -> bytes:
        """The rest: what was held back, and what stands after the last samples."""
        if self._tempo:
            self._mux(self._tempo.finish())
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.getvalue() if isinstance(self._sink, io.BytesIO) else self._sink.take()

    def _mux(self, samples: bytes) -> None:
        if samples:
            frame = audio_frame(samples, self._taken_samples)
            self._taken_samples += frame.samples
            self._container.mux(self._stream.encode(frame))

    def __del__(self) -> None:
        # A container and its streams refer to each other: until it is closed, megabytes wait for the collector.
        self._container.close()


class Transcoder:
    """One answer's encoder on the event loop. Calls follow one another; a cancelled one is the last.

    What computes runs in `pool`, from the making of the encoder on; the rest is done at once.
    """

    def __init__(self, format: Format, speed: float, complete: bool, pool: Executor) -> None:
        self._pool = None if speed == NATURAL_SPEED and not format.compressed else pool
        self._make = partial(Encoder, format, complete, speed)

    @cached_property
    def _encoder(self) -> Encoder:
        return self._make()

    async def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready, which may be nothing."""
        return await self._do(lambda: self._encoder.encode(samples))

    async def finish(self) -> bytes:
        """The rest."""
        return await self._do(lambda: self._encoder.finish())

    async def _do(self, work: Callable[[], bytes]) -> bytes:
        if self._pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
