"""A server of a `base` checkpoint as its users run it: what they hear is the reference's, in each way to clone."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
import soundfile

from .golden_outputs import BASE, GOLDEN, recording
from .serving import Server

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"
CASES = {case["name"]: case for case in json.loads((GOLDEN / "base" / "cases.json").read_text())["cases"]}
HEARD = ("base_00", "base_02", "base_05")
"""In-context with the whole text and with streamed text, and the x-vector alone."""


def wav(name: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, recording(name), 24_000, subtype="FLOAT", format="WAV")
    return file.getvalue()


def asked(case: dict) -> dict:
    """A case as a greedy request, but for its recording."""
    return {
        "model": "tts-1",
        "input": case["text"],
        "language": case["language"],
        "non_streaming_mode": case["non_streaming_mode"],
        "repetition_penalty": case["repetition_penalty"],
        "temperature": 0,
        "max_new_frames": 23,
        "response_format": "pcm",
    }


def recorded(case: dict) -> dict:
    return {
        "ref_audio": f"data:audio/wav;base64,{base64.b64encode(wav(case['ref_audio'])).decode()}",
        "ref_text": case["ref_text"],
        "x_vector_only": case["x_vector_only"],
    }


def check(answer: httpx.Response, name: str) -> None:
    assert answer.status_code == 200, answer.text
    with np.load(GOLDEN / "base" / f"{name}.npz") as arrays:
        expected = np.round(arrays["wav"] * 32_767)
    made = np.frombuffer(answer.content, "<i2")
    assert len(made) == len(expected)
    assert np.abs(made - expected).max() <= 1


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server("--set", f"cloning.voices_dir={tmp_path_factory.mktemp('voices')}", checkpoint=BASE)
    try:
        running.wait_until_ready()
        yield running
    finally:
        assert running.stop() == 0
        assert running.group() == []


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", HEARD)
def test_a_request_with_a_recording_sounds_as_the_references(client, name, stream):
    check(client.post(SPEECH, json={**asked(CASES[name]), **recorded(CASES[name]), "stream": stream}), name)


def test_an_uploaded_voice_sounds_as_the_references(client):
    case = CASES["base_00"]
    form = {"name": "Ada", "ref_text": case["ref_text"]}
    assert client.post(VOICES, data=form, files={"audio_sample": wav(case["ref_audio"])}).status_code == 200
    check(client.post(SPEECH, json={**asked(case), "voice": "ada"}), "base_00")
    check(client.post(SPEECH, json={**asked(case), "voice": "alloy"}), "base_00")
    assert client.delete(f"{VOICES}/Ada").status_code == 200


def test_a_recording_that_is_none_is_refused_and_serving_goes_on(server, client):
    body = {**asked(CASES["base_05"]), "ref_audio": "data:audio/wav;base64,AAAA", "x_vector_only": True}
    error = client.post(SPEECH, json=body).json()["error"]
    assert (error["param"], error["code"]) == ("ref_audio", "invalid_value")
    (cloner,) = server.children("cloning.worker")
    os.kill(cloner, signal.SIGKILL)
    while os.path.exists(f"/proc/{cloner}"):
        time.sleep(0.05)
    check(client.post(SPEECH, json={**asked(CASES["base_02"]), **recorded(CASES["base_02"])}), "base_02")


def test_the_cloning_process_ends_with_a_server_that_is_killed():
    server = Server(checkpoint=BASE)
    server.wait_until_ready()
    assert len(server.group()) == 4
    assert server.kill() == []


def test_the_command_line_clones(tmp_path):
    (tmp_path / "ref.wav").write_bytes(wav("ref_1.npy"))
    command = [sys.executable, "-m", "duotone", "say", "-", "--model", str(BASE), "-o", str(tmp_path / "out.wav")]
    done = subprocess.run(
        [*command, "--ref-audio", str(tmp_path / "ref.wav"), "--seed", "1"],
        input="Hello there.",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert soundfile.info(tmp_path / "out.wav").duration >= 0.16
