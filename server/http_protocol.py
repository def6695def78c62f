"""What uvicorn's protocols lack: limits on what comes in front of a request's body, and the envelope of every error."""

import asyncio
from http import HTTPStatus

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode

from .errors import NotHttp, answer_to, envelope
from .live_protocol import ErrorEvent

MAX_HEAD_BYTES = 1 << 16
HEAD_TIMEOUT_S = 60.0
_AFTERWARDS_S = 1.0
"""So long after who writes has given a client up, its connection is cut."""


class _TakenInTime(asyncio.Protocol):
    """Cuts a connection that takes nothing: what waits for it would be held for ever, and a close waits for that."""

    send_timeout_s = 60.0
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _cut: asyncio.TimerHandle | None = None
    """When it has taken nothing for too long; None while it takes what there is."""

    def pause_writing(self) -> None:
        """Of the event loop."""
        super().pause_writing()
        self._cut = self.loop.call_later(self.send_timeout_s + _AFTERWARDS_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Of the event loop."""
        self._forget()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of the event loop."""
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None


class HttpProtocol(_TakenInTime, HttpToolsProtocol):
    """Answers 431 to a request line and headers that do not end within MAX_HEAD_BYTES, and hangs up.

    The bytes that came at once with the first of them do not count: what is held stays bounded all the same. It hangs
    up on a new connection too, or a request that has begun, whose head is not there after HEAD_TIMEOUT_S.

    A request behind one whose answer has not begun is not taken, and the connection ends with that answer: where
    requests queue up, uvicorn does not notice that their client leaves.
    """

    _head_bytes: int | None = None
    """None outside of a head."""
    _deadline: asyncio.TimerHandle
    """When the head has to be there."""
    _is_last = False
    """Nothing is taken behind the present request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn has it.
        """Of the event loop."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of the event loop."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Of the event loop."""
        if self._is_last:
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HTTPException(431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        """Of the parser."""
        self._head_bytes = 0
        self._deadline.cancel()
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Of the parser."""
        self._head_bytes = None
        self._deadline.cancel()
        answered = self.cycle
        super().on_headers_complete()
        if self.pipeline and not answered.response_started:  # else the client may have all that it waits for
            self.pipeline.clear()
            self.cycle, self._is_last = answered, True
            self.cycle.keep_alive = False
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Of the parser."""
        if not self._is_last:
            super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn, for what the parser does not take."""
        self._refuse(NotHttp(msg))

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _refuse(self, error: Exception) -> None:
        status, body = HTTPStatus(answer_to(error).status), envelope(error).model_dump_json().encode()
        self.transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (status, status.phrase.encode(), len(body), body)
        )
        self.transport.close()


class WebSocketProtocol(_TakenInTime, WebSocketsSansIOProtocol):
    """Tells, before it closes with 1009, of a message that is too large to be taken at all."""

    def handle_parser_exception(self) -> None:
        """Of uvicorn, which sends the close."""
        if isinstance(self.conn.parser_exc, PayloadTooBig):
            error = HTTPException(413, f"the message is larger than {self.config.ws_max_size} bytes")
            told = ErrorEvent(error=envelope(error).error).model_dump_json().encode()
            # Sent at once with the close: a client that is still sending may read no further than the next packet.
            self.conn.writes.insert(0, Frame(Opcode.TEXT, told).serialize(mask=False))
        super().handle_parser_exception()


def protocols(send_timeout_s: float) -> tuple[type[HttpProtocol], type[WebSocketProtocol]]:
    """Uvicorn's `http` and `ws`, with the time in which a client has to take something."""
    own = {"send_timeout_s": send_timeout_s}
    return type("Http", (HttpProtocol,), own), type("WebSocket", (WebSocketProtocol,), own)
