"""Every request's id: given by the client or made here, carried by every answer and every log line."""

import logging
import re
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER = "X-Request-Id"
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")

_BEGINNINGS = {"http.response.start", "websocket.accept", "websocket.http.response.start"}
"""The messages that carry an answer's headers."""

_request_id: ContextVar[str] = ContextVar("request_id", default="-")
"""Never reset: a request's task ends with it, and what is logged after the application returned is still about it."""


def current_request_id() -> str:
    """The id of the request that the calling task answers; `-` outside of one."""
    return _request_id.get()


class RequestIdFilter(logging.Filter):
    """Gives every log record the attribute `request_id`."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id()
        return True


class RequestIdMiddleware:
    """Takes the client's own X-Request-Id when it is sane (it ends up in logs), else makes one; answers carry it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _SANE_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] in _BEGINNINGS:
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        _request_id.set(request_id)
        await self._app(scope, receive, send_with_id)
