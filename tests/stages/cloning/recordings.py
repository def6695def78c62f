"""Recordings as files of many kinds."""

import io

import av
import numpy as np
import numpy.typing as npt
import soundfile


def stored(samples: npt.NDArray[np.float32], rate: int = 24_000, kind: str = "WAV", subtype: str = "FLOAT") -> bytes:
    """[samples] or [samples, channels] as a file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, subtype=subtype, format=kind)
    return file.getvalue()


def muxed(samples: npt.NDArray[np.float32], container: str, codec: str, rate: int = 48_000) -> bytes:
    """[samples], mono, as a file that libav writes."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="flt", layout="mono")
        frame.sample_rate = rate
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def tone(duration_s: float, rate: int = 24_000, hz: float = 440) -> npt.NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(duration_s * rate)) / rate)).astype(np.float32)
