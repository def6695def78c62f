"""Compressed formats: PyAV's encoders and muxers over samples that come bit by bit."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from av.audio import AudioStream

from ..stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME


@dataclass(frozen=True)
class Coding:
    """A codec in a container, by libav's names and options. `streaming` holds options for answers sent while made."""

    container: str
    codec: str
    bit_rate: int | None = None
    sample_rate: int = SAMPLE_RATE
    codec_options: Mapping[str, str] = field(default_factory=dict)
    streaming: Mapping[str, str] = field(default_factory=dict)


MP3 = Coding("mp3", "libmp3lame", bit_rate=96_000)
# Opus knows no 24 kHz stream; libav resamples. A page goes out when the next one is there, so pages hold one packet.
OPUS = Coding("ogg", "libopus", bit_rate=48_000, sample_rate=48_000, streaming={"page_duration": "20000"})
AAC = Coding("adts", "aac", bit_rate=96_000)
# One block for each of the pipeline's frames, else its first 80 ms would wait for more.
FLAC = Coding("flac", "flac", codec_options={"frame_size": str(SAMPLES_PER_FRAME)})


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


class AvEncoder:
    """An Encoder (audio.py). One that is dropped frees its codec at once, in whichever thread lets go of it last.

    Complete files are written where libav can go back, so their headers tell true lengths; `finish` returns them whole.
    """

    def __init__(self, coding: Coding, complete: bool) -> None:
        self._sink = io.BytesIO() if complete else _Outbox()
        options = {"flush_packets": "1", "metadata_header_padding": "0"} | ({} if complete else dict(coding.streaming))
        self._container = av.open(self._sink, "w", format=coding.container, options=options)
        stream = self._container.add_stream(
            coding.codec, rate=coding.sample_rate, layout="mono", options=dict(coding.codec_options)
        )
        assert isinstance(stream, AudioStream)
        if coding.bit_rate is not None:
            stream.bit_rate = coding.bit_rate
        self._stream = stream
        self._container.start_encoding()
        self._taken_samples = 0

    def encode(self, samples: bytes) -> bytes:
        if samples:
            frame = audio_frame(samples, self._taken_samples)
            self._taken_samples += frame.samples
            self._container.mux(self._stream.encode(frame))
        return b"" if isinstance(self._sink, io.BytesIO) else self._sink.take()

    def finish(self) -> bytes:
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
