"""Containers around the samples."""

import io
import struct
import wave

import numpy as np
import pytest
import soundfile

from duotone.server.audio import FORMATS, encode_complete

RAMP = np.arange(-1000, 1000, dtype="<i2")


def test_a_complete_wav_holds_the_samples_and_true_sizes():
    file = encode_complete(FORMATS["wav"], RAMP.tobytes())
    samples, rate = soundfile.read(io.BytesIO(file), dtype="int16")
    assert (rate, samples.tolist()) == (24_000, RAMP.tolist())
    assert struct.unpack_from("<4sI4s", file) == (b"RIFF", len(file) - 8, b"WAVE")
    assert struct.unpack_from("<4sI", file, 36) == (b"data", 4000)


def test_a_streamed_wav_has_one_header_with_the_largest_sizes():
    encoder = FORMATS["wav"].encoder(None)
    file = (
        encoder.start() + encoder.encode(RAMP[:700].tobytes()) + encoder.encode(RAMP[700:].tobytes()) + encoder.finish()
    )
    assert struct.unpack_from("<4sI4s", file) == (b"RIFF", 0xFFFFFFFF, b"WAVE")
    assert struct.unpack_from("<4sI", file, 36) == (b"data", 0xFFFFFFFF)
    assert file[44:] == RAMP.tobytes()
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, 24_000)


def test_pcm_is_the_samples():
    assert encode_complete(FORMATS["pcm"], RAMP.tobytes()) == RAMP.tobytes()


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_an_answer_without_samples_is_a_valid_file(format):
    file = encode_complete(format, b"")
    assert len(file) in (0, 44)
