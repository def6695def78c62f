"""Audio formats: PyAV's encoders and muxers over samples that come bit by bit. A new format is a line in FORMATS."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from av.audio import AudioStream

from ..stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME
from .protocol import ResponseFormat

CHANNELS = 1


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

    def __init__(self, format: Format, complete: bool) -> None:
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
        self._taken_samples = 0

    def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready."""
        if samples:
            frame = audio_frame(samples, self._taken_samples)
            self._taken_samples += frame.samples
            self._container.mux(self._stream.encode(frame))
        return b"" if isinstance(self._sink, io.BytesIO) else self._sink.take()

    def finish(self) -> bytes:
        """The rest: what was held back, and what stands after the last samples."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.getvalue() if isinstance(self._sink, io.BytesIO) else self._sink.take()

    def __del__(self) -> None:
        # A container and its streams refer to each other: until it is closed, megabytes wait for the collector.
        self._container.close()


def audio_frame(samples: bytes, begins_at: int) -> av.AudioFrame:
    """Samples, s16le mono at 24 kHz, as libav takes them; `begins_at` is the number of samples before them."""
    frame = av.AudioFrame.from_ndarray(np.frombuffer(samples, "<i2").reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = SAMPLE_RATE
    frame.time_base = Fraction(1, SAMPLE_RATE)
    frame.pts = begins_at
    return frame
