"""What uvicorn's HTTP lacks: limits on what comes in front of a request's body."""

import asyncio

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import envelope

MAX_HEAD_BYTES = 1 << 16
HEAD_TIMEOUT_S = 60.0


class HttpProtocol(HttpToolsProtocol):
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
            self._refuse()

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

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _refuse(self) -> None:
        error = HTTPException(431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes")
        body = envelope(error).model_dump_json().encode()
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()
