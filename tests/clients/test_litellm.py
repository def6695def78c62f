"""LiteLLM as a proxy in front: its health check, and openai-python through it."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("litellm.proxy")

from openai import AsyncOpenAI, BadRequestError, OpenAI

from ..server.decoding import assert_lasts, decoded
from ..serving import free_port, wait_until_answered

CONFIG = """
model_list:
  - model_name: house-voice
    litellm_params: {{model: openai/tts-1, api_base: "{base_url}", api_key: none}}
    model_info: {{mode: audio_speech}}
general_settings: {{master_key: "{key}"}}
"""
KEY = "sk-proxy"


@pytest.fixture(scope="module")
def proxy_url(server, tmp_path_factory):
    config = tmp_path_factory.mktemp("litellm") / "config.yaml"
    config.write_text(CONFIG.format(base_url=f"{server.url}/v1", key=KEY))
    port = free_port()
    command = [
        Path(sys.executable).with_name("litellm"),
        "--config",
        config,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, cwd=config.parent)
    try:
        wait_until_answered(f"http://127.0.0.1:{port}/health/liveliness", process, timeout_s=120)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def test_its_health_check_finds_the_model_well(proxy_url):
    report = httpx.get(f"{proxy_url}/health", headers={"Authorization": f"Bearer {KEY}"}, timeout=60).json()
    assert (report["healthy_count"], report["unhealthy_count"]) == (1, 0), report


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_passes(proxy_url, spoken_samples, format):
    with OpenAI(base_url=proxy_url, api_key=KEY, max_retries=0) as client:
        answer = client.audio.speech.create(
            model="house-voice", voice="alloy", input="Hello there.", response_format=format
        )
    if format == "pcm":
        assert len(answer.content) == 2 * spoken_samples()
    else:
        assert_lasts(decoded(answer.content), format, spoken_samples())


async def test_speech_streams_through(proxy_url, spoken_samples):
    async with (
        AsyncOpenAI(base_url=proxy_url, api_key=KEY, max_retries=0) as client,
        client.audio.speech.with_streaming_response.create(
            model="house-voice", voice="alloy", input="Hello there.", response_format="pcm"
        ) as answer,
    ):
        chunks = [chunk async for chunk in answer.iter_bytes()]
    assert sum(map(len, chunks)) == 2 * spoken_samples()


def test_a_refusal_passes_too(proxy_url):
    with OpenAI(base_url=proxy_url, api_key=KEY, max_retries=0) as client, pytest.raises(BadRequestError) as refusal:
        client.audio.speech.create(model="house-voice", voice="nope", input="Hello there.")
    assert "alloy" in str(refusal.value)
