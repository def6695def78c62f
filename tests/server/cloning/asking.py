"""Requests with recordings, and what became of them."""

import base64

import httpx

SPEECH = "/v1/audio/speech"
VOICES = "/v1/audio/voices"


def data_url(audio: bytes, type: str = "audio/wav") -> str:
    return f"data:{type};base64,{base64.b64encode(audio).decode()}"


async def upload(client, name="Ann", audio=b"sound", **fields) -> httpx.Response:
    return await client.post(VOICES, data={"name": name, **fields}, files={"audio_sample": ("a.wav", audio)})


async def refusal(answer: httpx.Response, status: int = 400) -> tuple[str | None, str]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def heard(pipeline) -> str:
    """What the last prompt held of a recording: the x-vector's number, and the transcript."""
    return pipeline.streams[-1].choices[4]
