"""Bytes that somebody sent → a recording. They may be anything: libav decodes them in the cloning process alone."""

import io

import av
import numpy as np
import numpy.typing as npt
import soxr

from ..errors import RequestError
from ..types import SAMPLE_RATE

Samples = npt.NDArray[np.float32]
"""[samples] at SAMPLE_RATE, mono, mostly in -1 … 1, never beyond LOUDEST_PEAK."""

SHORTEST_S = 0.5
SILENCE_PEAK = 1e-3
"""-60 dB: less than any voice, more than a recorder's noise without one."""
LOUDEST_PEAK = 8.0
"""18 dB above full scale: more than any recorder's overshoot; the encoders overflow with much more."""
SAMPLE_RATES = range(4_000, 384_001)
_CONTAINERS = "aac,aiff,caf,flac,matroska,mov,mp3,ogg,w64,wav"
"""None of them refers to other files; playlists would."""
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}


def read_recording(audio: bytes, longest_s: float) -> Samples:
    """Decode, mix down, resample. Stops as soon as the recording is too long. Raises RequestError without a field."""
    try:
        # Samples that overflow a mean are refused below.
        opened = av.open(io.BytesIO(audio), "r", options=_OPTIONS)
        with opened as container, np.errstate(over="ignore", invalid="ignore"):
            if not container.streams.audio:
                raise RequestError("there is no audio in it")
            mono, sample_rate = _decode(container, longest_s)
    except (av.FFmpegError, ValueError):
        raise RequestError("it is no WAV, FLAC, MP3, AAC, MP4, Ogg, WebM, AIFF or CAF, or a broken one") from None
    if len(mono) < SHORTEST_S * sample_rate:
        raise RequestError(f"it is {len(mono) / sample_rate:.2f} s long, and has to be {SHORTEST_S:g} s at least")
    peak = np.abs(mono).max()
    if not np.isfinite(peak):
        raise RequestError("it holds samples that are no numbers")
    if peak < SILENCE_PEAK:
        raise RequestError("it is silent")
    if peak > LOUDEST_PEAK:
        raise RequestError(
            f"its samples go up to {peak:.3g}, and full scale is 1: more than {LOUDEST_PEAK:g} is no sound"
        )
    return soxr.resample(mono, sample_rate, SAMPLE_RATE)


def _decode(container: av.container.InputContainer, longest_s: float) -> tuple[Samples, int]:
    """The first audio stream, its channels averaged, and its sample rate."""
    if container.streams.audio[0].codec_context is None:
        raise RequestError("its codec is unknown")
    to_floats = av.AudioResampler(format="flt")
    pieces, samples, sample_rate = [np.empty(0, np.float32)], 0, SAMPLE_RATE
    for decoded in container.decode(audio=0):
        for frame in to_floats.resample(decoded):
            # What the frames say, not the header: the coding of higher frequencies apart doubles it.
            sample_rate = frame.sample_rate
            if sample_rate not in SAMPLE_RATES:
                limits = f"from {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
                raise RequestError(f"its {sample_rate} samples a second are not {limits}")
            samples += frame.samples
            if samples > longest_s * sample_rate:
                raise RequestError(f"it is longer than {longest_s:g} s")
            # Packed: of planes, PyAV finds no more than eight.
            channels = frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
            pieces.append(channels.mean(axis=1, dtype=np.float32))
    return np.concatenate(pieces), sample_rate
