"""Every field of a speech request: what is refused, under which name, and what is not."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SPEECH = "/v1/audio/speech"
HUGE = 2**63

REFUSED = [
    ("model", 5),
    ("model", ["tts-1"]),
    ("input", ""),
    ("input", 5),
    ("input", ["Hello."]),
    ("voice", 5),
    ("voice", {}),
    ("voice", {"id": 5}),
    ("voice", ["alloy"]),
    ("voice", "\ud83d"),
    ("input", "half a pair \ud83d"),
    ("instructions", 5),
    ("instructions", "x" * 5000),
    ("instructions", "\udc00"),
    ("response_format", "ogg"),
    ("response_format", "MP3"),
    ("response_format", ""),
    ("response_format", 5),
    ("speed", "1.0"),
    ("speed", True),
    ("speed", 0.2),
    ("speed", 4.1),
    ("speed", []),
    ("stream_format", "chunked"),
    ("stream_format", True),
    ("language", "klingon"),
    ("language", 5),
    ("language", ""),
    ("seed", -1),
    ("seed", HUGE),
    ("seed", 1.0),
    ("seed", True),
    ("seed", "1"),
    ("stream", "false"),
    ("stream", 0),
    ("max_new_frames", 0),
    ("max_new_frames", True),
    ("max_new_frames", 2.0),
    ("min_new_frames", -1),
    ("min_new_frames", "2"),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "0.9"),
    ("temperature", 5e-324),
    ("temperature", 0.009),
    ("top_k", -1),
    ("top_k", 50.0),
    ("top_p", 0),
    ("top_p", 1.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 5e-324),
    ("repetition_penalty", 10.1),
    ("repetition_penalty", False),
    ("non_streaming_mode", "yes"),
    ("non_streaming_mode", 1),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
async def test_a_wrong_value_is_refused_by_its_field(client, ask, pipeline, field, value):
    # Not httpx's own encoding, which cannot send half a surrogate pair.
    content = json.dumps(ask(**{field: value}))
    answer = await client.post(SPEECH, content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "invalid_value")
    assert error["message"]
    assert pipeline.streams == []


ACCEPTED = [
    ("voice", {"id": "Ryan", "more": 1}),
    ("voice", "default"),
    ("voice", "CEDAR"),
    ("language", "CHINESE"),
    ("language", "Auto"),
    ("seed", 0),
    ("seed", HUGE - 1),
    ("speed", 1),
    ("speed", 0.25),
    ("speed", 4),
    ("stream_format", "sse"),
    ("temperature", 0),
    ("temperature", 0.01),
    ("temperature", 2),
    ("top_p", 5e-324),
    ("repetition_penalty", 0.1),
    ("top_k", 0),
    ("top_p", 1),
    ("min_new_frames", 0),
    ("stream", True),
    ("no_such_field", {"any": "thing"}),
]


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
async def test_a_right_value_is_accepted(client, ask, field, value):
    assert (await client.post(SPEECH, json=ask(**{field: value}))).status_code == 200


OPTIONAL = [
    *("voice", "instructions", "response_format", "speed", "stream_format", "language", "seed", "stream"),
    *("max_new_frames", "min_new_frames", "temperature", "top_k", "top_p", "repetition_penalty", "non_streaming_mode"),
]


@pytest.mark.parametrize("field", OPTIONAL)
async def test_null_means_absent(client, ask, field):
    assert (await client.post(SPEECH, json=ask(**{field: None}))).status_code == 200


@pytest.mark.parametrize("field", ["model", "input"])
async def test_what_must_be_there_is_named_when_it_is_not(client, ask, field):
    absent = {name: value for name, value in ask().items() if name != field}
    for body in (absent, ask(**{field: None})):
        answer = await client.post(SPEECH, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_the_least_frames_cannot_be_above_the_most(client, ask):
    answer = await client.post(SPEECH, json=ask(min_new_frames=5, max_new_frames=4))
    assert answer.json()["error"] == {
        "message": "min_new_frames: must not be above max_new_frames",
        "type": "invalid_request_error",
        "param": "min_new_frames",
        "code": "invalid_value",
    }


async def test_every_wrong_field_is_told_at_once(client, ask):
    answer = await client.post(SPEECH, json=ask(speed="fast", top_k=-1))
    error = answer.json()["error"]
    assert error["param"] == "speed"
    assert error["message"] == (
        "speed: Input should be a valid number; top_k: Input should be greater than or equal to 0"
    )


ANY_VALUE = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("x" * 5000)),
    *(st.lists(st.integers(), max_size=2), st.dictionaries(st.sampled_from(["id", "x"]), st.text(), max_size=2)),
    *map(st.just, ("wav", "opus", 1.5, "sse", "auto", "alloy", "tts-1")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(fields=st.dictionaries(st.sampled_from([*OPTIONAL, "model", "input"]), ANY_VALUE, max_size=4))
async def test_no_body_at_all_breaks_the_server(client, ask, fields):
    content = json.dumps(ask(**fields))
    answer = await client.post(SPEECH, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        assert answer.json()["error"]["param"] in fields


@pytest.mark.parametrize(
    "content",
    [
        *(b"{", b"", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b"1" * 5000),
        b'{"model": "tts-1", "input": "x", "speed": NaN}',
        b'{"model": "tts-1", "input": "x", "temperature": Infinity}',
    ],
)
async def test_a_body_that_is_no_speech_request_is_refused(client, pipeline, content):
    answer = await client.post(SPEECH, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert pipeline.streams == []


async def test_json_without_a_content_type_is_read(client):
    answer = await client.post(SPEECH, content=b'{"model": "tts-1", "input": "Hello."}')
    assert answer.status_code == 200


async def test_a_form_is_told_what_is_read(client):
    answer = await client.post(SPEECH, data={"model": "tts-1", "input": "Hello."})
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]
