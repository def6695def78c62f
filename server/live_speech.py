"""WS /v1/audio/speech/stream: text in pieces, audio while text still comes. live_protocol.py tells what is said.

A session has two ends that run side by side. The reading one obeys messages: it cuts the growing text into pieces and
hands them to a narration. The speaking one sends the narration's audio. What is spoken between two flushes is one
narration and one file. A client that takes nothing holds the speaking end back, and with it both stages; one that
leaves or cancels ends it at once.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import Executor
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import APIRouter, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketDisconnect

from ..stages.errors import DuotoneError, RequestError
from ..stages.types import SAMPLE_BYTES, SAMPLE_RATE
from .audio import FORMATS, Transcoder
from .config import HttpOptions, Settings
from .errors import ClientGone, SlowClient, answer_to, envelope
from .growing_text import GrowingText
from .keys import ApiKeys
from .live_protocol import (
    ClientMessage,
    Done,
    ErrorEvent,
    Obeyed,
    Order,
    Ready,
    Segment,
    ServerMessage,
    SessionStart,
    TextPart,
    parse_message,
)
from .narration import Delivery, Narration, Narrator
from .protocol import Usage
from .request_id import current_request_id

log = logging.getLogger(__name__)

_CLOSE_CODES = {413: 1009, 415: 1003, 429: 1013}
_FLUSH_CHARS = 64
"""What a flush that waits counts for in the limit of what may wait."""
_CLIENT_AT_FAULT, _SERVER_AT_FAULT, _ALL_SAID = 1008, 1011, 1000


class Wire:
    """A session's connection in terms of messages. Every method raises ClientGone when the client is not there."""

    def __init__(self, socket: WebSocket, options: HttpOptions) -> None:
        self._socket = socket
        self._send_timeout_s = options.send_timeout_s

    async def receive(self, max_bytes: int) -> ClientMessage:
        """The next message. Raises what `parse_message` does, and HTTPException for binary and large ones."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise ClientGone("the client closed the session")
        text = message.get("text")
        if text is None:
            raise HTTPException(415, "messages are JSON text; this one is binary")
        if len(text.encode()) > max_bytes:
            raise HTTPException(413, f"the message is larger than {max_bytes} bytes")
        return parse_message(text)

    async def tell(self, message: ServerMessage) -> None:
        await self._within_time(self._socket.send_text(message.model_dump_json()))

    async def send_audio(self, audio: bytes) -> None:
        if audio:
            await self._within_time(self._socket.send_bytes(audio))

    async def close(self, code: int) -> None:
        await self._within_time(self._socket.close(code))

    async def fail(self, error: Exception) -> None:
        """Tell of an error, and close."""
        answer, told = answer_to(error), envelope(error).error
        if told.param == "input":
            told = told.model_copy(update={"param": "text"})
        log.log(logging.WARNING if answer.status >= 500 else logging.INFO, "the session ends with an error: %s", error)
        await self.tell(ErrorEvent(error=told))
        at_fault = _SERVER_AT_FAULT if answer.status >= 500 else _CLIENT_AT_FAULT
        await self.close(_CLOSE_CODES.get(answer.status, at_fault))

    async def _within_time(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await sending
        except TimeoutError:
            raise SlowClient(f"the client took nothing for {self._send_timeout_s:g} s and is given up") from None
        except (WebSocketDisconnect, RuntimeError):  # The latter is uvicorn's, once it has closed the connection.
            raise ClientGone("the client went away") from None


@dataclass(frozen=True)
class LiveSpeech:
    """What every session shares."""

    narrator: Narrator
    settings: Settings
    keys: ApiKeys
    encoding: Executor
    max_start_bytes: int
    """Of a `session`, which may bring a recording."""

    async def serve(self, socket: WebSocket) -> None:
        """One session, from its opening to its close."""
        await socket.accept()
        wire = Wire(socket, self.settings.http)
        try:
            try:
                await self._converse(socket, wire)
            except ClientGone:
                raise
            except (DuotoneError, HTTPException, RequestValidationError) as error:
                await wire.fail(error)
            except Exception as error:  # The outermost place that knows the client; the server would just hang up.
                log.exception("the session fails")
                await wire.fail(error)
        except ClientGone as gone:
            log.log(logging.WARNING if isinstance(gone, SlowClient) else logging.INFO, "the session ends: %s", gone)

    async def _converse(self, socket: WebSocket, wire: Wire) -> None:
        try:
            async with asyncio.timeout(self.settings.http.live_idle_s):
                start = await wire.receive(self.max_start_bytes)
        except TimeoutError:
            raise _idle(self.settings.http) from None
        if not isinstance(start, SessionStart):
            raise RequestError("the first message must be a `session`", "type")
        if "authorization" not in socket.headers:
            self.keys.check_key(start.api_key.get_secret_value().encode() if start.api_key else b"")
        session = Session(self, wire, start, await self.narrator.delivery(start))
        await wire.tell(Ready(request_id=current_request_id(), response_format=start.response_format))
        await session.run()
        await wire.close(_ALL_SAID)


class Session:
    """One client's session once it is accepted; ends with ClientGone, an error, or after `done`."""

    def __init__(self, shared: LiveSpeech, wire: Wire, start: SessionStart, delivery: Delivery) -> None:
        """Raises NotReady."""
        self._shared = shared
        self._options = shared.settings.http
        self._wire = wire
        self._start = start
        self._delivery = delivery
        self._text = GrowingText(self._delivery.front)
        self._narrations: deque[Narration] = deque([self._open()])
        """What is spoken now, then what follows on it; to the last of them text is added."""
        self._ended = False
        """Nothing is added any more."""
        self._usage = Usage(input_tokens=0, output_tokens=0, total_tokens=0)
        self._segments = 0
        self._active_s = time.monotonic()
        """When something was last said, on either side."""

    async def run(self) -> None:
        """Obey and speak, side by side, until all is spoken after `end`."""
        reading = self._read()
        self._speaking = asyncio.ensure_future(self._speak())
        try:
            while not self._speaking.done():
                await asyncio.wait(
                    (reading, self._speaking), timeout=self._idle_left_s(), return_when=asyncio.FIRST_COMPLETED
                )
                if reading.done():
                    self._active_s = time.monotonic()
                    await self._obey(reading.result())
                    reading = self._read()
            self._speaking.result()
        except SlowClient:
            for narration in self._narrations:
                narration.cancel("slow_client")
            raise
        finally:
            for narration in self._narrations:
                narration.cancel()
            for task in (reading, self._speaking):
                task.cancel()
            await asyncio.gather(reading, self._speaking, return_exceptions=True)

    # ---- what the client says

    def _read(self) -> asyncio.Future[ClientMessage]:
        return asyncio.ensure_future(self._wire.receive(self._options.live_max_message_bytes))

    async def _obey(self, message: ClientMessage) -> None:
        if self._ended and message.type != "cancel":
            raise RequestError(f"`{message.type}` came after `end`", "type")
        match message:
            case TextPart():
                self._add(self._text.add(message.text))
            case Order(type="flush"):
                self._make_room(_FLUSH_CHARS)
                self._close()
                self._narrations.append(self._open())
            case Order(type="end"):
                self._close()
                self._ended = True
            case Order(type="cancel"):
                await self._cancel()
            case SessionStart():
                raise RequestError("the session has begun already", "type")

    def _make_room(self, chars: int) -> None:
        """Raises RequestError when with so many more too much waits to be spoken."""
        flushes = len(self._narrations) - 1
        waiting = len(self._text) + sum(narration.upcoming_chars for narration in self._narrations)
        waiting += _FLUSH_CHARS * flushes
        most = self._options.live_max_pending_chars
        if waiting + chars > most:
            raise RequestError(f"{waiting + chars} characters, as they are spoken, would wait: over {most}", "text")

    def _add(self, texts: list[str]) -> None:
        """Have pieces of the text spoken, which may be much longer than it: numbers and signs are words there."""
        self._make_room(sum(map(len, texts)))
        self._narrations[-1].extend(self._delivery.piece(text) for text in texts)

    def _close(self) -> None:
        self._add(self._text.flush())
        self._narrations[-1].close()

    def _open(self) -> Narration:
        return self._shared.narrator.open(current_request_id(), self._delivery.choices)

    async def _cancel(self) -> None:
        """Stop what is spoken in both stages, then go on as after an empty flush."""
        for narration in self._narrations:
            narration.cancel("cancel")
        self._speaking.cancel()
        await asyncio.wait((self._speaking,))
        if not self._speaking.cancelled():
            self._speaking.result()  # It ended by itself just before: with an error, or with `done`.
            return
        for narration in self._narrations:
            self._usage += narration.usage
        self._text.clear()
        self._narrations = deque() if self._ended else deque([self._open()])
        await self._wire.tell(Obeyed(type="cancelled"))
        self._speaking = asyncio.ensure_future(self._speak())

    # ---- what the server says

    async def _speak(self) -> None:
        """Send one narration after the other, and `done` after the last."""
        while self._narrations:
            await self._send_speech(self._narrations[0])
            self._usage += self._narrations.popleft().usage
            if self._narrations:
                await self._wire.tell(Obeyed(type="flushed"))
        await self._wire.tell(Done(usage=self._usage))

    async def _send_speech(self, narration: Narration) -> None:
        """One narration as one file."""
        speed = self._start.speed
        transcoder = Transcoder(FORMATS[self._start.response_format], speed, False, self._shared.encoding)
        piece, taken_bytes = None, 0
        async for samples in narration:
            if narration.piece is not None and narration.piece is not piece:
                piece = narration.piece
                start_s = taken_bytes / SAMPLE_BYTES / SAMPLE_RATE / speed
                await self._wire.tell(Segment(index=self._segments, text=piece.text, start_s=round(start_s, 3)))
                self._segments += 1
            taken_bytes += len(samples)
            await self._wire.send_audio(await transcoder.encode(samples))
            self._active_s = time.monotonic()
        if taken_bytes:
            await self._wire.send_audio(await transcoder.finish())

    def _idle_left_s(self) -> float:
        """How long the client may still say nothing. Raises HTTPException once that is over."""
        if self._narrations and self._narrations[0].speaking:
            self._active_s = time.monotonic()
        left_s = self._active_s + self._options.live_idle_s - time.monotonic()
        if left_s <= 0:
            raise _idle(self._options)
        return left_s


def _idle(options: HttpOptions) -> HTTPException:
    return HTTPException(408, f"nothing was said for {options.live_idle_s:g} s")


def live_speech_router(live: LiveSpeech) -> APIRouter:
    """The WebSocket."""
    router = APIRouter()

    @router.websocket("/v1/audio/speech/stream")
    async def speech_stream(socket: WebSocket) -> None:
        _check_origin(socket, live.settings.http.cors_origins)
        await live.serve(socket)

    # Without it, the router would refuse with 403 and no words.
    @router.websocket("/{path:path}")
    async def nothing(socket: WebSocket) -> None:
        raise HTTPException(404)

    return router


def _check_origin(socket: WebSocket, allowed: tuple[str, ...]) -> None:
    """Browsers let every page open WebSockets, so what CORS is for other routes is done here. Raises HTTPException."""
    origin = socket.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed or urlsplit(origin).netloc == socket.headers.get("host"):
        return
    raise HTTPException(403, f"pages of {origin} may not call this server")
