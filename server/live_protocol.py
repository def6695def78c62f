"""What travels over WS /v1/audio/speech/stream: one JSON object a text message, audio in binary messages.

A client sends `session` first, then any of the others, in any order:

| message | what it does |
|---|---|
| `session` | begins: the fields of a speech request without `input`; `pcm` by default, no `wav`; `api_key` if needed |
| `text` | `text`: more of the text, cut anywhere between two characters |
| `flush` | speaks what is there, complete or not; `flushed` follows its audio |
| `cancel` | stops the speech and forgets the text; `cancelled` follows, and after it nothing of what was cancelled |
| `end` | speaks the rest; `done` follows its audio, and the connection closes with 1000 |

The server answers:

| message | what it tells |
|---|---|
| `ready` | the session is accepted: `request_id`, `response_format`, `sample_rate`, `channels` |
| `segment` | the audio that follows speaks `text`, the `index`th of the session; in its file it begins at `start_s` |
| binary | the next bytes of the audio |
| `flushed`, `cancelled` | as above: the audio up to here is one file, cut off if cancelled; another one follows |
| `done` | `usage` of the whole session, what was cancelled included |
| `error` | `error`: what went wrong, as every route tells it; the connection closes |

Close codes after `error`: 1003 a binary message; 1008 a message or the session at fault (`param` names the field), or
nothing said for too long; 1009 a message that is too large; 1011 the server at fault; 1013 too busy, try again later.
`max_new_frames` bounds every piece of the text, not the session.
"""

from typing import Annotated, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from ..stages.errors import RequestError
from ..stages.types import SAMPLE_RATE
from .audio import CHANNELS
from .errors import NotJson
from .protocol import ErrorBody, SpeechChoices, Text, Usage

LiveFormat = Literal["pcm", "mp3", "opus", "aac", "flac"]
"""Not `wav`: its header tells a length that nobody knows."""


class SessionStart(SpeechChoices):
    """The first message."""

    type: Literal["session"]
    response_format: LiveFormat = "pcm"
    api_key: SecretStr | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class TextPart(_Message):
    """More of the text."""

    type: Literal["text"]
    text: Text


class Order(_Message):
    """Speak what is there; stop speaking and forget the text; speak the rest and close."""

    type: Literal["flush", "cancel", "end"]


ClientMessage = SessionStart | TextPart | Order
_CLIENT_MESSAGE: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])


def parse_message(text: str) -> ClientMessage:
    """Raises RequestValidationError, RequestError for an object of no such type, NotJson."""
    try:
        return _CLIENT_MESSAGE.validate_json(text)
    except ValidationError as error:
        problems = error.errors()
    if problems[0]["loc"]:
        raise RequestValidationError(problems)
    if problems[0]["type"] == "json_invalid":
        raise NotJson(f"the message is not JSON: {problems[0]['ctx']['error']}")
    raise RequestError("a message is an object whose `type` is session, text, flush, cancel or end", "type")


class Ready(BaseModel):
    """The session is accepted."""

    type: Literal["ready"] = "ready"
    request_id: str
    response_format: LiveFormat
    sample_rate: int = SAMPLE_RATE
    channels: int = CHANNELS


class Segment(BaseModel):
    """The audio of another piece begins."""

    type: Literal["segment"] = "segment"
    index: int
    text: str
    start_s: float = Field(description="seconds of audio in front of it since the last `flushed` or `cancelled`")


class Obeyed(BaseModel):
    """All that was there at a `flush` has been sent; nothing is spoken any more."""

    type: Literal["flushed", "cancelled"]


class Done(BaseModel):
    """All has been sent."""

    type: Literal["done"] = "done"
    usage: Usage


class ErrorEvent(BaseModel):
    """The session fails; nothing follows but the close."""

    type: Literal["error"] = "error"
    error: ErrorBody


ServerMessage = Ready | Segment | Obeyed | Done | ErrorEvent
