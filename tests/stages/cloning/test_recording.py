"""What was sent becomes 24 kHz mono, or is refused with the reason, in little time and memory."""

import struct
import time

import numpy as np
import pytest

from duotone.stages.cloning.recording import read_recording
from duotone.stages.errors import RequestError

from .recordings import muxed, stored, tone


def refused(audio: bytes, reason: str, longest_s: float = 30) -> None:
    with pytest.raises(RequestError, match=reason):
        read_recording(audio, longest_s)


def test_float_samples_at_24_khz_come_through_as_they_are(voice):
    assert np.array_equal(read_recording(stored(voice), 30), voice)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 192_000])
def test_other_sample_rates_are_resampled(rate):
    heard = read_recording(stored(tone(2, rate), rate), 30)
    assert abs(len(heard) - 48_000) <= 1
    assert np.abs(heard[1000:-1000] - tone(2)[1000 : len(heard) - 1000]).max() < 2e-3


def test_channels_are_mixed_down(voice):
    both = stored(np.stack((voice, -voice / 2), axis=1))
    assert np.allclose(read_recording(both, 30), voice / 4, atol=1e-7)


@pytest.mark.parametrize("channels", [3, 8, 9, 12, 16, 32])
def test_many_channels_are_mixed_down_too(voice, channels):
    shares = np.arange(1, channels + 1, dtype=np.float32) / channels
    heard = read_recording(stored(voice[:, None] * shares), 30)
    assert np.allclose(heard, voice * shares.mean(), atol=1e-6)


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("webm", "libopus"),
        ("mp4", "aac"),
        ("adts", "aac"),
        ("flac", "flac"),
        ("aiff", "pcm_s16be"),
        ("caf", "pcm_s16le"),
    ],
)
def test_what_people_record_with_is_decoded(container, codec):
    heard = read_recording(muxed(tone(2, 48_000), container, codec), 30)
    assert abs(len(heard) - 48_000) < 2_000
    spectrum = np.abs(np.fft.rfft(heard[6_000:30_000]))
    assert spectrum.argmax() == 440


@pytest.mark.parametrize(
    "audio",
    [
        b"",
        b"hello" * 1000,
        b"\x89PNG\r\n\x1a\n" + bytes(1000),
        b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile 'voice.wav'\n",
        b"RIFF\xff\xff\xff\xffWAVE",
    ],
)
def test_what_is_no_audio_is_refused(audio):
    refused(audio, "it is no WAV, FLAC|there is no audio")


def test_a_playlist_is_not_followed_to_a_file_that_is_there(tmp_path, monkeypatch, wav):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "voice.wav").write_bytes(wav)
    for playlist in (b"ffconcat version 1.0\nfile voice.wav\n", b"#EXTM3U\n#EXTINF:1,\nvoice.wav\n#EXT-X-ENDLIST\n"):
        refused(playlist, "it is no WAV")


def test_length_and_loudness_have_limits(voice):
    refused(stored(tone(0.49)), r"0\.49 s long")
    assert len(read_recording(stored(tone(0.5)), 30)) == 12_000
    refused(stored(tone(3.01)), "longer than 3 s", longest_s=3)
    refused(stored(np.zeros(24_000, np.float32)), "silent")
    refused(stored(voice * 1e-3), "silent")
    refused(stored(np.where(voice == voice.max(), np.nan, voice)), "no numbers")
    refused(stored(tone(1, 2_000), 2_000), "2000 samples a second")
    assert np.abs(read_recording(stored(voice / np.abs(voice).max() * 8), 30)).max() == 8


@pytest.mark.parametrize("loudest", [8.1, 1e3, 1e20, 3e38])
def test_samples_far_beyond_full_scale_are_refused(voice, loudest):
    scaled = voice / np.abs(voice).max() * np.float32(loudest)
    refused(stored(scaled), "full scale is 1|no numbers")
    refused(stored(np.stack((scaled, scaled), axis=1)), "full scale is 1|no numbers")


def test_a_small_file_of_many_hours_is_refused_at_once():
    """A FLAC of silence: 3 MB that would be 5 GB of samples."""
    audio = stored(np.zeros(24_000 * 600, np.float32), kind="FLAC", subtype="PCM_16")
    begun_s = time.process_time()
    refused(audio, "longer than 30 s")
    assert time.process_time() - begun_s < 1


def test_every_truncation_of_a_file_is_a_recording_or_refused(wav):
    flac = muxed(tone(1, 48_000), "flac", "flac")
    for audio in (wav, flac):
        for end in range(0, len(audio), max(1, len(audio) // 50)):
            try:
                read_recording(audio[:end], 30)
            except RequestError:
                continue


def test_noise_in_a_file_is_a_recording_or_refused():
    rng = np.random.default_rng(1)
    for audio in (stored(tone(1)), *(muxed(tone(1, 48_000), *kind) for kind in (("mp4", "aac"), ("webm", "libopus")))):
        for _ in range(40):
            broken = np.frombuffer(audio, np.uint8).copy()
            at = rng.integers(0, len(broken), 20)
            broken[at] = rng.integers(0, 256, 20)
            try:
                read_recording(broken.tobytes(), 30)
            except RequestError:
                continue


def test_a_header_that_lies_about_its_size_costs_nothing():
    header = (
        b"RIFF" + struct.pack("<I", 0xFFFFFFF0) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 65_535, 48_000, 1, 1, 16)
    )
    refused(header + b"data" + struct.pack("<I", 0xFFFFFF00) + bytes(1000), "it is no WAV|long|silent")
