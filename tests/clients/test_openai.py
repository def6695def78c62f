"""openai-python: sync, async, streamed, every format, and its errors."""

import asyncio
import io
import wave

import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI

from ..server.decoding import assert_lasts, decoded
from ..serving import Server

FORMATS = ["mp3", "opus", "aac", "flac", "wav", "pcm"]
TEXT = "The kettle is on, and the cups are warm."
SAME = {"seed": 5, "min_new_frames": 25, "max_new_frames": 25}
SAMPLES = 25 * 1920


@pytest.fixture
def client(base_url):
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(base_url):
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def assert_holds(content: bytes, format: str, samples: int, complete: bool = False) -> None:
    if format == "pcm":
        assert len(content) == 2 * samples
    else:
        assert_lasts(decoded(content), format, samples, complete)


def test_without_a_format_mp3_comes(client, spoken_samples):
    answer = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert_holds(answer.content, "mp3", spoken_samples())


@pytest.mark.parametrize("format", FORMATS)
def test_every_format(client, format):
    answer = client.audio.speech.create(
        model="gpt-4o-mini-tts", voice="ash", input=TEXT, response_format=format, extra_body=SAME
    )
    assert_holds(answer.content, format, SAMPLES)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_as_one_complete_file(client, format):
    answer = client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format=format, extra_body=SAME | {"stream": False}
    )
    assert int(answer.response.headers["content-length"]) == len(answer.content)
    assert_holds(answer.content, format, SAMPLES, complete=True)
    if format == "wav":
        with wave.open(io.BytesIO(answer.content)) as file:
            assert file.getnframes() == SAMPLES


@pytest.mark.parametrize("format", FORMATS)
async def test_every_format_asynchronously_streamed(async_client, format):
    request = async_client.audio.speech.with_streaming_response.create(
        model="tts-1-hd", voice="alloy", input=TEXT, response_format=format, extra_body=SAME
    )
    async with request as answer:
        content = b"".join([chunk async for chunk in answer.iter_bytes()])
    assert_holds(content, format, SAMPLES)


def test_a_streamed_answer_equals_the_complete_one(client):
    choices = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": "pcm"}
    complete = client.audio.speech.create(**choices, extra_body=SAME | {"stream": False}).content
    with client.audio.speech.with_streaming_response.create(**choices, extra_body=SAME) as answer:
        chunks = list(answer.iter_bytes())
    assert len(chunks) > 1
    streamed = memoryview(b"".join(chunks)).cast("h")
    assert len(streamed) == SAMPLES
    assert max(abs(one - other) for one, other in zip(streamed, memoryview(complete).cast("h"), strict=True)) <= 1


def test_speech_goes_to_a_file(client, tmp_path):
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, extra_body=SAME
    ) as answer:
        answer.stream_to_file(tmp_path / "speech.mp3")
    assert_holds((tmp_path / "speech.mp3").read_bytes(), "mp3", SAMPLES)


@pytest.mark.parametrize("speed", [0.5, 1.5, 4.0])
def test_speed(client, speed):
    answer = client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="flac", speed=speed, extra_body=SAME
    )
    assert_holds(answer.content, "flac", round(SAMPLES / speed))


async def test_eight_odd_texts_at_once(async_client):
    texts = [
        "---\nHow to verify",
        "🤪",
        "ft (On, Brightn.",
        "1次",
        "!!!",
        "...",
        "word " * 600,
        "# Title\n**bold** [x](y)",
    ]
    answers = await asyncio.gather(
        *(async_client.audio.speech.create(model="tts-1", voice="alloy", input=text) for text in texts)
    )
    for answer, text in zip(answers, texts, strict=True):
        assert 0.08 <= decoded(answer.content).seconds <= 0.08 * (len(text) + 4 * (1 + len(text) // 100)) + 0.3


def test_events(client):
    # This client reads no events; it hands on their lines.
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="ash", input=TEXT, stream_format="sse", extra_body=SAME
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: {") for line in lines)
    assert '"type":"speech.audio.done"' in lines[-1]
    assert '"output_tokens":25' in lines[-1]


def test_a_refusal_names_its_field(client):
    with pytest.raises(BadRequestError) as refusal:
        client.audio.speech.create(model="tts-1", voice="nope", input=TEXT)
    assert (refusal.value.param, refusal.value.code) == ("voice", "invalid_value")
    assert "alloy" in refusal.value.message
    assert refusal.value.request_id.startswith("req_")


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(NotFoundError) as refusal:
        client.audio.speech.create(model="nope", voice="alloy", input=TEXT)
    assert refusal.value.code == "model_not_found"


def test_models_are_listed(client):
    names = [model.id for model in client.models.list()]
    assert names == ["checkpoint", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert client.models.retrieve("tts-1").id == "tts-1"


def test_a_server_with_keys_wants_one_of_them():
    server = Server(env={"DUOTONE_HTTP__API_KEYS": "[sk-one, sk-two]"})
    try:
        server.wait_until_ready()
        for key in ("sk-one", "sk-two"):
            with OpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
                answer = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, extra_body=SAME)
                assert_holds(answer.content, "mp3", SAMPLES)
        with OpenAI(base_url=f"{server.url}/v1", api_key="sk-three") as client:
            assert len(client.models.list().data) == 4
            with pytest.raises(AuthenticationError) as refusal:
                client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
            assert refusal.value.code == "invalid_api_key"
    finally:
        server.stop()
