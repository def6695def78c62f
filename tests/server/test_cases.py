"""Requests that real clients send, and what they must get (tests/cases/requests.jsonl)."""

import io
import json
import struct
import wave
from pathlib import Path

import httpx
import pytest

from duotone.stages.types import FRAME_S, SAMPLE_RATE

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
        assert answer.content.endswith(spoken("".join(pieces)))
        assert texts(pipeline) == list(pieces)

    return check


def is_short_silence(answer: httpx.Response, pipeline: FakePipeline) -> None:
    assert answer.status_code == 200
    assert answer.content[44:] == bytes(2 * SAMPLE_RATE // 5)
    assert pipeline.streams == []


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
    "format_case": is_refused("response_format", "wav", "pcm"),
    "stream_true_audio": is_spoken("Hello there."),
    "wav_plain": has_true_sizes,
    "wav_streamed": has_open_sizes,
}

# Without their encoders these are refused by the name of the format.
COMPRESSED = {"full_stop_probe", "sse_mp3", "opus_tail"}


def test_every_case_of_the_file_is_checked():
    assert set(CASES) == set(EXPECTED) | COMPRESSED


@pytest.mark.parametrize("name", EXPECTED)
async def test_case(name, client, pipeline):
    EXPECTED[name](await client.post("/v1/audio/speech", json=CASES[name]), pipeline)


@pytest.mark.parametrize("name", sorted(COMPRESSED))
async def test_a_compressed_format_is_refused_with_those_that_there_are(name, client, pipeline):
    answer = await client.post("/v1/audio/speech", json=CASES[name])
    is_refused("response_format", "'wav'", "'pcm'")(answer, pipeline)
