"""The limit on what comes in front of a request's body, which neither uvicorn nor its parser has."""

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import envelope

MAX_HEAD_BYTES = 1 << 16


class HeadLimitProtocol(HttpToolsProtocol):
    """Answers 431 to a request line and headers that do not end within MAX_HEAD_BYTES, and hangs up.

    The bytes that came at once with the first of them do not count: what is held stays bounded all the same.
    """

    _head_bytes: int | None = None
    """None outside of a head."""

    def data_received(self, data: bytes) -> None:
        """Of the event loop."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """Of the parser."""
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Of the parser."""
        self._head_bytes = None
        super().on_headers_complete()

    def _refuse(self) -> None:
        error = HTTPException(431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes")
        body = envelope(error).model_dump_json().encode()
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()
