"""The limit on a request's body."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import answer_error


class BodyLimitMiddleware:
    """Answers 413 as soon as a body is known to be too large: from its Content-Length, else while it is read."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            response = await answer_error(Request(scope), self._too_large())
            await response(scope, receive, send)
            return
        received_bytes = 0

        async def receive_within_limit() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_within_limit, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is larger than {self._max_bytes} bytes")
