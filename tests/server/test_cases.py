"""Requests that real clients send, and what they must get (tests/cases/requests.jsonl)."""

import base64
import io
import json
import struct
import wave
from pathlib import Path

import httpx
import pytest

from duotone.stages.types import FRAME_S, SAMPLE_BYTES, SAMPLE_RATE, SAMPLES_PER_FRAME

from .decoding import assert_lasts, decoded
from .fake_pipeline import FakePipeline, spoken

CASES = {
    case["name"]: case["request"]
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "requests.jsonl").read_text().splitlines())
}


def texts(pipeline: FakePipeline) -> list[str]:
    return [stream.text for stream in pipeline.streams]


def is_refused(param: str, *named: str):
    def check(answer: httpx.Response, pipeline: FakePipeline) -> None:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert all(name in error["message"] for name in named)
        assert pipeline.streams == []

    return check


def is_spoken(*pieces: str):
    def check(answer: httpx.Response, pipeline: FakePipeline) -> None:
        assert answer.status_code == 200
        assert texts(pipeline) == list(pieces)
        pcm = spoken("".join(pieces))
        if answer.headers["content-type"] == "audio/mpeg":
            assert_lasts(decoded(answer.content), "mp3", len(pcm) // SAMPLE_BYTES)
        else:
            assert answer.content.endswith(pcm)

    return check


def is_short_silence(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.status_code == 200
    assert answer.content[44:] == bytes(2 * SAMPLE_RATE // 5)
    assert pipeline.streams == []


def is_a_short_silent_mp3(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.status_code == 200
    assert_lasts(decoded(answer.content), "mp3", SAMPLE_RATE // 5)
    assert pipeline.streams == []


def is_opus_to_its_end(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.content[:4] == b"OggS"
    assert_lasts(decoded(answer.content), "opus", len(spoken("".join(texts(pipeline)))) // SAMPLE_BYTES)


def is_mp3_in_events(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    frames = len("".join(texts(pipeline)))
    assert_lasts(decoded(audio), "mp3", frames * SAMPLES_PER_FRAME)
    assert done["usage"]["output_tokens"] == frames


def model_is_not_found(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def cannot_run_away(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.status_code == 200
    assert texts(pipeline) == ["1次"]
    assert pipeline.streams[0].sampling.max_new_frames * FRAME_S <= 6


def every_word_is_spoken(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.status_code == 200
    assert " ".join(texts(pipeline)) == CASES["no_full_stop"]["input"].strip()
    assert all(set(piece.split()) == {"word"} for piece in texts(pipeline))


def is_one_file_with_one_header(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.content.count(b"RIFF") == 1
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.readframes(file.getnframes()) == spoken("".join(texts(pipeline)))


def has_true_sizes(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert struct.unpack_from("<I", answer.content, 4)[0] == len(answer.content) - 8
    assert struct.unpack_from("<I", answer.content, 40)[0] == len(answer.content) - 44 == len(spoken("Hello there."))


def has_open_sizes(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.content.count(b"RIFF") == 1
    assert struct.unpack_from("<I", answer.content, 4) == struct.unpack_from("<I", answer.content, 40) == (0xFFFFFFFF,)
    assert answer.content[44:] == spoken("Hello there.")


EXPECTED = {
    "blank": is_refused("input"),
    "full_stop_probe": is_a_short_silent_mp3,
    "health_probe": is_spoken("test"),
    "punctuation": is_short_silence,
    "emoji_only": is_short_silence,
    "emoji_inside": is_spoken("Good morning everyone"),
    "markdown": is_spoken("Title. bold and a link one. two."),
    "rule_fragment": is_spoken("How to verify"),
    "mid_word_fragment": is_spoken("ft (On, Brightn."),
    "number_and_classifier": cannot_run_away,
    "no_full_stop": every_word_is_spoken,
    "two_sentences_one_file": is_one_file_with_one_header,
    "over_limit": is_refused("input", "4096"),
    "voice_case": is_spoken("Hello."),
    "voice_object": is_spoken("Hello."),
    "voice_unknown": is_refused("voice", "nope", "Vivian", "ryan", "alloy", "default"),
    "voice_empty": is_refused("voice"),
    "model_unknown": model_is_not_found,
    "null_fields": is_spoken("Hello."),
    "speed_string": is_refused("speed"),
    "speed_range": is_refused("speed"),
    "format_case": is_refused("response_format", "mp3", "opus", "aac", "flac", "wav", "pcm"),
    "sse_mp3": is_mp3_in_events,
    "stream_true_audio": is_spoken("Hello there."),
    "wav_plain": has_true_sizes,
    "wav_streamed": has_open_sizes,
    "opus_tail": is_opus_to_its_end,
}


def test_every_case_of_the_file_is_checked():
    assert set(CASES) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
async def test_case(name, client, pipeline):
    EXPECTED[name](await client.post("/v1/audio/speech", json=CASES[name]), pipeline)
