"""POST /v1/audio/speech: the answers' shapes over HTTP, and what a client's leaving means.

The first samples exist before the status is sent, so an early failure is a real error. While an answer is made or sent,
the connection is watched: when the client goes away, its work is cancelled in both stages at once.
"""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ..stages.errors import DuotoneError, RequestError
from ..stages.types import SAMPLE_RATE
from .audio import CHANNELS, FORMATS, Transcoder
from .config import HttpOptions
from .connection import until_gone
from .errors import ERROR_RESPONSES, ClientGone, envelope
from .narration import Narration, Narrator
from .protocol import AudioDelta, AudioDone, SpeechRequest
from .request_id import REQUEST_ID_HEADER, current_request_id

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
_PART_BYTES = 1 << 16

_HEADERS = {
    "X-Audio-Sample-Rate": str(SAMPLE_RATE),
    "X-Audio-Channels": str(CHANNELS),
    "X-Accel-Buffering": "no",
    "Cache-Control": "no-store",
}

_T = TypeVar("_T")


async def _begun(beginning: Awaitable[Narration]) -> tuple[Narration, bytes]:
    """The narration and its first samples. Cancels it when they do not come."""
    narration = await beginning
    try:
        return narration, await anext(narration, b"")
    except BaseException:
        narration.cancel()
        raise


async def audio_chunks(narration: Narration, first: bytes, transcoder: Transcoder) -> AsyncIterator[bytes]:
    """The encoded answer. Raises what the pipeline raises: the body must then end without its proper end."""
    yield await transcoder.encode(first)
    async for samples in narration:
        yield await transcoder.encode(samples)
    yield await transcoder.finish()


async def complete_file(beginning: Awaitable[Narration], transcoder: Transcoder) -> tuple[Narration, bytes]:
    """The whole encoded answer. Raises what the pipeline raises."""
    narration, first = await _begun(beginning)
    with narration:
        return narration, b"".join([chunk async for chunk in audio_chunks(narration, first, transcoder)])


async def parts(content: bytes) -> AsyncIterator[bytes]:
    """What is there already, as it is sent: the next part when the connection has taken the last one."""
    for at in range(0, len(content), _PART_BYTES):
        yield content[at : at + _PART_BYTES]


async def event_chunks(narration: Narration, first: bytes, transcoder: Transcoder) -> AsyncIterator[bytes]:
    """The answer as server-sent events. A failure of the pipeline is an event of its own and the last one."""
    try:
        async for chunk in audio_chunks(narration, first, transcoder):
            if chunk:
                yield _event(AudioDelta(audio=base64.b64encode(chunk).decode()))
    except DuotoneError as error:
        log.warning("the answer ends with an error event: %s", error)
        yield b"event: error\n" + _event(envelope(error))
    else:
        yield _event(AudioDone(usage=narration.usage))


def _event(message: BaseModel) -> bytes:
    return f"data: {message.model_dump_json()}\n\n".encode()


class SentSpeech(StreamingResponse):
    """An answer that is sent while it is made, or was made before. Owns the narration from here on.

    Holds one chunk at a time: the next is made when the connection has taken the last one, for which it has some time.
    """

    def __init__(
        self,
        narration: Narration,
        chunks: AsyncIterator[bytes],
        media_type: str,
        send_timeout_s: float,
        headers: Mapping[str, str] = _HEADERS,
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._narration = narration
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)

        with self._narration:
            try:
                await until_gone(receive, self.stream_response(send_in_time))
            except ClientGone:
                log.info("the client went away while it was answered")
            except DuotoneError as error:
                # Without its last, empty chunk the body is seen to be cut off: the server closes the connection.
                log.error("the answer is cut off: %s", error)
            except TimeoutError:
                self._narration.cancel("slow_client")
                log.warning("the client took nothing for %g s and is given up", self._send_timeout_s)


def speech_router(narrator: Narrator, options: HttpOptions, encoding: Executor) -> APIRouter:
    """The route that all the rest is for. Encoders run in `encoding`."""
    router = APIRouter(tags=["speech"])

    @router.post(
        "/v1/audio/speech",
        summary="Speak a text",
        response_class=Response,
        responses={200: _DOCUMENTED_ANSWER, **ERROR_RESPONSES},
    )
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Answers with audio while it is made, in one body or as server-sent events, or with one complete file."""
        if body.stream_format == "sse" and not body.stream:
            raise RequestError("server-sent events are a stream: ask for `stream_format` `audio`, or stream", "stream")
        media_type = FORMATS[body.response_format].media_type
        transcoder = Transcoder(FORMATS[body.response_format], body.speed, not body.stream, encoding)
        beginning = narrator.begin(current_request_id(), body)
        if not body.stream:
            narration, content = await until_gone(request.receive, complete_file(beginning, transcoder))
            headers = _HEADERS | {"Content-Length": str(len(content))}
            return SentSpeech(narration, parts(content), media_type, options.send_timeout_s, headers)
        narration, first = await until_gone(request.receive, _begun(beginning))
        if body.stream_format == "sse":
            chunks, media_type = event_chunks(narration, first, transcoder), EVENT_STREAM
        else:
            chunks = audio_chunks(narration, first, transcoder)
        return SentSpeech(narration, chunks, media_type, options.send_timeout_s)

    return router


_EVENTS_EXAMPLE = """\
data: {"type":"speech.audio.delta","audio":"//NkxAAAAANIAAAAAExBTUUzLjEwMFVVVVVV"}

data: {"type":"speech.audio.done","usage":{"input_tokens":21,"output_tokens":30,"total_tokens":51}}

"""

_EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "description": "`error` for a failure, else absent"},
        "data": {"type": "string", "description": "JSON with `type`, or the envelope of an error"},
    },
    "required": ["data"],
}

_DOCUMENTED_ANSWER: dict[str, Any] = {
    "description": (
        "Audio, mono, sent while it is made; `response_format` says in which format. With `stream_format` `sse`, "
        "events that carry it in base64 and then the usage: positions of the prompt in, frames of 80 ms out. A failure "
        "after the first bytes cuts the body off; among events it is an `error` event, the last one."
    ),
    "headers": {
        name: {"description": description, "schema": {"type": "string"}, "required": True}
        for name, description in {
            REQUEST_ID_HEADER: "the client's own, or one made here; log lines carry it",
            "X-Audio-Sample-Rate": "samples a second as they were made, before any codec resamples them",
            "X-Audio-Channels": "always 1",
        }.items()
    },
    "content": {
        **{format.media_type: {"schema": {"type": "string", "format": "binary"}} for format in FORMATS.values()},
        EVENT_STREAM: {"itemSchema": _EVENT_SCHEMA, "example": _EVENTS_EXAMPLE},
    },
}
