"""From exceptions to answers: the one table of status, type and code, and OpenAI's envelope around every message.

The pipeline's error tree (stages/errors.py) goes on here:

    RequestError
    ├── NotHttp        what was sent is not HTTP that can be read
    ├── NotJson        what was sent is not JSON at all
    ├── ModelNotFound  the request names a model that is not served
    └── VoiceNotFound  the request is about an uploaded voice that is not there
    DuotoneError
    ├── ClientGone     nobody is left to answer
    │   └── SlowClient  somebody is there and takes nothing
    └── KeyRefused     the request brings no API key, or none of ours
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from ..stages.errors import (
    DuotoneError,
    NotReady,
    PipelineError,
    ProfilerFailed,
    ProfilingConflict,
    QueueFull,
    RequestError,
)
from .protocol import ErrorBody, ErrorEnvelope
from .request_id import REQUEST_ID_HEADER, current_request_id

log = logging.getLogger(__name__)

RETRY_NOT_READY_S = 5


class NotHttp(RequestError):
    """What was sent is not HTTP that can be read."""


class NotJson(RequestError):
    """What was sent is not JSON at all."""


class ModelNotFound(RequestError):
    """The request names a model that is not served."""


class VoiceNotFound(RequestError):
    """The request is about an uploaded voice that is not there."""


class ClientGone(DuotoneError):
    """The client went away before it had its answer."""


class SlowClient(ClientGone):
    """The client took nothing of its answer for so long that it is given up."""


class KeyRefused(DuotoneError):
    """The request needs an API key and brings none that is accepted."""


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorEnvelope, "description": "The request is at fault; `param` names the field."},
    "5XX": {"model": ErrorEnvelope, "description": "The server is at fault, or not ready."},
}
"""For the `responses` of every route, so that /docs shows the envelope and not FastAPI's own."""


@dataclass(frozen=True)
class Answer:
    """How an exception is answered."""

    status: int
    type: str
    code: str | None


_TABLE: dict[type[Exception], Answer] = {
    RequestValidationError: Answer(400, "invalid_request_error", "invalid_value"),
    RequestError: Answer(400, "invalid_request_error", "invalid_value"),
    NotHttp: Answer(400, "invalid_request_error", "invalid_http"),
    NotJson: Answer(400, "invalid_request_error", "invalid_json"),
    ModelNotFound: Answer(404, "invalid_request_error", "model_not_found"),
    VoiceNotFound: Answer(404, "invalid_request_error", "voice_not_found"),
    QueueFull: Answer(429, "rate_limit_error", "queue_full"),
    KeyRefused: Answer(401, "invalid_request_error", "invalid_api_key"),
    ClientGone: Answer(499, "invalid_request_error", "client_closed_request"),
    ProfilingConflict: Answer(409, "invalid_request_error", "profiling_conflict"),
    ProfilerFailed: Answer(500, "server_error", "profiler_failed"),
    NotReady: Answer(503, "server_error", "not_ready"),
    PipelineError: Answer(503, "server_error", "pipeline_failed"),
    Exception: Answer(500, "server_error", "internal_error"),
}

_JSON_INVALID = "json_invalid"
"""pydantic's name for it."""

_HTTP_CODES = {
    400: "invalid_body",
    403: "origin_not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "idle_timeout",
    413: "body_too_large",
    415: "binary_message",
    431: "headers_too_large",
}


def answer_to(error: Exception) -> Answer:
    """The table's row of the closest class."""
    if isinstance(error, HTTPException):
        return Answer(error.status_code, "invalid_request_error", _HTTP_CODES.get(error.status_code))
    if isinstance(error, RequestValidationError) and error.errors()[0]["type"] == _JSON_INVALID:
        return _TABLE[NotJson]
    return next(_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE)


def envelope(error: Exception) -> ErrorEnvelope:
    """An exception as the client reads it. What we did not raise on purpose tells nothing of itself."""
    answer = answer_to(error)
    message, param = "the server failed on this request", None
    if isinstance(error, RequestValidationError):
        message, param = _readable(error.errors())
    elif isinstance(error, RequestError):
        message, param = str(error), error.param
    elif isinstance(error, DuotoneError):
        message = str(error)
    elif isinstance(error, HTTPException):
        message = _why_unread(error.__cause__) or str(error.detail)
    return ErrorEnvelope(error=ErrorBody(message=message, type=answer.type, param=param, code=answer.code))


async def answer_error(connection: HTTPConnection, error: Exception) -> Response:
    """The exception handler of every class in the table."""
    answer, told = answer_to(error), envelope(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    # Set here too: the answer to an unexpected exception is made outside the middleware that sets it.
    headers[REQUEST_ID_HEADER] = current_request_id()
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.retry_after_s)
    elif isinstance(error, NotReady):
        headers["Retry-After"] = str(RETRY_NOT_READY_S)
    elif isinstance(error, KeyRefused):
        headers["WWW-Authenticate"] = "Bearer"
    level = logging.WARNING if answer.status >= 500 else logging.INFO
    if isinstance(error, NotReady):
        level = logging.DEBUG  # What every probe of a starting server hears.
    method = connection.scope["method"] if connection.scope["type"] == "http" else "WebSocket"
    # What the client is told, and not the error itself, which may hold all of a body.
    log.log(level, "%s %s: %d: %s", method, connection.url.path, answer.status, told.error.message)
    return JSONResponse(told.model_dump(), answer.status, headers)


def _why_unread(cause: BaseException | None) -> str | None:
    """What was wrong with a body that FastAPI could not read, which only the cause of its exception tells."""
    match cause:
        case UnicodeDecodeError():
            return f"the body is not {cause.encoding.upper()}: {cause.reason} at byte {cause.start}"
        case RecursionError():
            return "the body is nested too deeply"
        case ValueError():  # Python reads no integer of more than some thousand digits.
            return f"the body cannot be read: {str(cause).partition(';')[0]}"
    return None


def _readable(problems: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Every problem of a body in one message, and the field of the first."""
    lines, fields = [], []
    for problem in problems:
        _, *location = problem["loc"]
        if problem["type"] == _JSON_INVALID:
            why = problem["ctx"]["error"].removesuffix(" at")
            return f"the body is not JSON: {why} at character {location[0]}", None
        if not location:
            return "the body must be a JSON object, sent with `Content-Type: application/json`", None
        fields.append(str(location[0]))
        lines.append(f"{location[0]}: {str(problem['msg']).removeprefix('Value error, ')}")
    return "; ".join(lines), fields[0]
