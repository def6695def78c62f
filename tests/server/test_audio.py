"""Every format, streamed and complete: what decoders find in it, when its bytes come, and where they are made."""

import asyncio
import gc
import io
import resource
import struct
import sys
import threading
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from duotone.server import audio
from duotone.server.audio import FORMATS, Encoder, Transcoder
from duotone.stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME

from .decoding import STREAMED_DELAY_SAMPLES, assert_lasts, decoded

COMPRESSED = ["mp3", "opus", "aac", "flac"]
FRAME_BYTES = 2 * SAMPLES_PER_FRAME
RAMP = np.arange(-1000, 1000, dtype="<i2")


def tone(samples: int, hertz: float = 440) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * hertz * np.arange(samples) / SAMPLE_RATE)).astype("<i2")


def speech() -> np.ndarray:
    """Two seconds that are not a whole number of any codec's frames: a low tone, and at the very end a high one."""
    return np.concatenate([tone(48_000 - 77, 300), tone(2400, 3000)])


def encode(format: str, samples: np.ndarray, complete: bool = False, chunk_bytes: int = FRAME_BYTES) -> bytes:
    encoder = Encoder(FORMATS[format], complete)
    pcm = samples.tobytes()
    chunks = [encoder.encode(pcm[begin : begin + chunk_bytes]) for begin in range(0, len(pcm), chunk_bytes)]
    return b"".join(chunks) + encoder.finish()


def strength(samples: np.ndarray, sample_rate: int, hertz: float) -> float:
    """The amplitude of one frequency."""
    turns = np.exp(-2j * np.pi * hertz * np.arange(len(samples)) / sample_rate)
    return float(2 * abs(np.mean(samples * turns)))


def test_a_complete_wav_holds_the_samples_and_true_sizes():
    file = encode("wav", RAMP, complete=True)
    assert struct.unpack_from("<4sI4s", file) == (b"RIFF", len(file) - 8, b"WAVE")
    assert struct.unpack_from("<4sI", file, 36) == (b"data", 4000)
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, 24_000)
        assert reader.readframes(reader.getnframes()) == RAMP.tobytes()


def test_a_streamed_wav_has_one_header_with_the_largest_sizes():
    file = encode("wav", RAMP, chunk_bytes=1400)
    assert struct.unpack_from("<4sI4s", file) == (b"RIFF", 0xFFFFFFFF, b"WAVE")
    assert struct.unpack_from("<4sI", file, 36) == (b"data", 0xFFFFFFFF)
    assert file[44:] == RAMP.tobytes()
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, 24_000)


@pytest.mark.parametrize("complete", [False, True])
def test_pcm_is_the_samples(complete):
    assert encode("pcm", RAMP, complete) == RAMP.tobytes()


@pytest.mark.parametrize("complete", [False, True])
def test_a_wav_without_samples_is_its_header(complete):
    assert len(encode("wav", RAMP[:0], complete)) == 44


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(
    ("format", "codec", "sample_rate"),
    [("mp3", "mp3float", 24_000), ("opus", "opus", 48_000), ("aac", "aac", 24_000), ("flac", "flac", 24_000)],
)
def test_the_codec_is_what_the_format_says(format, codec, sample_rate, complete):
    answer = decoded(encode(format, speech(), complete))
    assert (answer.codec, answer.sample_rate) == (codec, sample_rate)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("format", COMPRESSED)
def test_an_answer_lasts_as_long_as_its_samples(format, complete):
    for samples in (1920, 4800, 4801, 6719, 48_000):
        assert_lasts(decoded(encode(format, tone(samples), complete)), format, samples, complete)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("format", COMPRESSED)
def test_the_last_tenth_of_a_second_is_there(format, complete):
    sound = speech()
    answer = decoded(encode(format, sound, complete))
    delay = 0 if complete and format == "mp3" else STREAMED_DELAY_SAMPLES.get(format, 0)
    scale = answer.sample_rate // SAMPLE_RATE
    begin, end = ((at + delay) * scale for at in (len(sound) - 2400, len(sound)))
    tail = answer.samples[begin:end]
    assert strength(tail, answer.sample_rate, 3000) == pytest.approx(8000 / 32768, rel=0.1)
    assert strength(tail[-len(tail) // 4 :], answer.sample_rate, 3000) > 0.8 * 8000 / 32768
    assert strength(answer.samples[begin - len(tail) : begin], answer.sample_rate, 3000) < 0.01


@pytest.mark.parametrize("complete", [False, True])
def test_flac_loses_nothing(complete):
    sound = speech()
    assert (decoded(encode("flac", sound, complete)).samples * 32768).astype("<i2").tolist() == sound.tolist()


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav"])
def test_a_complete_file_states_its_length(format):
    sound = speech()
    # Ogg states where the last page ends, the decoder's warm-up of 312 samples at 48 kHz included.
    assert decoded(encode(format, sound, complete=True)).stated_s == pytest.approx(len(sound) / SAMPLE_RATE, abs=0.007)


def test_a_streamed_flac_states_no_length():
    assert decoded(encode("flac", speech())).stated_s is None


@pytest.mark.parametrize("format", COMPRESSED)
@pytest.mark.parametrize("complete", [False, True])
def test_how_samples_are_cut_changes_nothing(format, complete):
    small, large = (decoded(encode(format, speech(), complete, size)) for size in (2 * 17, 10 * FRAME_BYTES))
    assert np.array_equal(small.samples, large.samples)


@pytest.mark.parametrize(("format", "most_held_s"), [("mp3", 0.075), ("opus", 0.065), ("aac", 0.13), ("flac", 0.0)])
def test_an_unfinished_answer_plays_nearly_to_where_it_is(format, most_held_s):
    encoder = Encoder(FORMATS[format], False)
    received = b""
    for frames in range(1, 26):
        received += encoder.encode(tone(SAMPLES_PER_FRAME).tobytes())
        if frames >= 5:
            assert decoded(received).seconds >= 0.08 * frames - most_held_s


@pytest.mark.parametrize(("format", "least_bytes"), [("mp3", 200), ("opus", 300), ("flac", 300), ("wav", 3884)])
def test_the_first_80_ms_bring_sound_and_not_just_a_header(format, least_bytes):
    assert len(Encoder(FORMATS[format], False).encode(tone(SAMPLES_PER_FRAME).tobytes())) >= least_bytes


@pytest.mark.parametrize("format", COMPRESSED)
def test_a_short_silence_can_be_decoded_too(format):
    assert not decoded(encode(format, np.zeros(4800, "<i2"))).samples.any()


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_encoders_that_are_dropped_half_way_free_their_codecs_without_the_collector():
    def leave_half_way(times: int) -> None:
        for _ in range(times):
            Encoder(FORMATS["flac"], False).encode(tone(24_000).tobytes())

    gc.collect()
    gc.disable()
    try:
        leave_half_way(5)
        before_mb = resident_mb()
        leave_half_way(50)
        # Each that stayed would hold 7 MB.
        assert resident_mb() - before_mb < 50
    finally:
        gc.enable()


class TestTranscoder:
    @pytest.fixture
    def pool(self):
        with ThreadPoolExecutor(4) as pool:
            yield pool

    @pytest.mark.parametrize("format", FORMATS)
    async def test_many_at_once_keep_their_order(self, pool, format):
        async def answer(hertz: float) -> bytes:
            transcoder = Transcoder(FORMATS[format], 1.0, False, pool)
            pcm = tone(24_000, hertz).tobytes()
            cuts = range(0, len(pcm), 960)
            return b"".join([await transcoder.encode(pcm[at : at + 960]) for at in cuts]) + await transcoder.finish()

        pitches = [200 + 50 * index for index in range(16)]
        answers = await asyncio.gather(*map(answer, pitches))
        for content, hertz in zip(answers, pitches, strict=True):
            expected = encode(format, tone(24_000, hertz))
            if format == "pcm":
                assert content == expected
            else:  # every Ogg stream has a number of its own
                assert np.array_equal(decoded(content).samples, decoded(expected).samples)

    @pytest.mark.parametrize(
        ("format", "speed", "on_the_loop"), [("flac", 1.0, False), ("pcm", 1.0, True), ("pcm", 2.0, False)]
    )
    async def test_what_computes_leaves_the_event_loop(self, pool, monkeypatch, format, speed, on_the_loop):
        threads = set()

        class Watched(Encoder):
            def __init__(self, *args) -> None:
                threads.add(threading.get_ident())
                super().__init__(*args)

            def encode(self, samples: bytes) -> bytes:
                threads.add(threading.get_ident())
                return super().encode(samples)

        monkeypatch.setattr(audio, "Encoder", Watched)
        transcoder = Transcoder(FORMATS[format], speed, False, pool)
        await transcoder.encode(tone(4800).tobytes())
        await transcoder.finish()
        assert (threads == {threading.get_ident()}) == on_the_loop
        assert (threading.get_ident() in threads) == on_the_loop

    async def test_an_answer_that_is_given_up_while_it_waits_for_a_thread_is_not_encoded(self, monkeypatch):
        busy, encoded = threading.Event(), []
        monkeypatch.setattr(Encoder, "encode", lambda _, samples: encoded.append(samples))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(busy.wait)
            transcoder = Transcoder(FORMATS["flac"], 1.0, False, pool)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(transcoder.encode(b"ab"), 0.05)
            busy.set()
        assert encoded == []

    @pytest.mark.parametrize("format", ["pcm", "wav", "flac", "opus"])
    @pytest.mark.parametrize("speed", [0.25, 1.5, 4.0])
    @pytest.mark.parametrize("complete", [False, True])
    async def test_speed_divides_the_length_in_every_format(self, pool, format, speed, complete):
        transcoder = Transcoder(FORMATS[format], speed, complete, pool)
        content = await transcoder.encode(tone(48_000).tobytes()) + await transcoder.finish()
        samples = round(48_000 / speed)
        if format == "pcm":
            assert len(content) == 2 * samples
        else:
            assert_lasts(decoded(content), format, samples, complete)
