"""What stands between the HTTP server and the routes, request ids (request_id.py) and keys (keys.py) aside."""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import answer_error, envelope


class EnvelopedCorsMiddleware(CORSMiddleware):
    """Answers 403 to a preflight of an origin that is not allowed, in the envelope of every other error."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Methods and headers are all allowed, so only the origin can be at fault."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        error = HTTPException(403, f"pages of {request_headers['origin']} may not call this server")
        return JSONResponse(envelope(error).model_dump(), error.status_code)


class HeadMiddleware:
    """Has HEAD, which FastAPI's routes know not, answered as GET; the HTTP server keeps the body back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if head else scope, receive, send)


class BodyLimitMiddleware:
    """Answers 413 as soon as a body is known to be too large (from its Content-Length, else while it is read), and 408
    when it is not all there in time."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

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
        deadline_s: float | None = asyncio.get_running_loop().time() + self._timeout_s

        async def receive_within_limits() -> Message:
            nonlocal received_bytes, deadline_s
            try:
                async with asyncio.timeout_at(deadline_s):
                    message = await receive()
            except TimeoutError:
                raise self._too_late() from None
            if not message.get("more_body", False):
                deadline_s = None  # What follows tells that the client has left.
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_within_limits, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is larger than {self._max_bytes} bytes")

    def _too_late(self) -> HTTPException:
        # The rest of the body may still come: nothing else can be read from this connection.
        headers = {"Connection": "close"}
        return HTTPException(408, f"the body did not end within {self._timeout_s:g} s", headers)
