"""What is logged and how: a line a record, bounded, that no client can write into."""

import asyncio
import logging

from .request_id import RequestIdFilter

_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"
_LONGEST_CHARS = 1000
_TALKATIVE_LIBRARIES = ("httpx", "httpcore", "asyncio", "filelock", "huggingface_hub")
_SAID_ALREADY = ("ASGI callable returned without completing ", "Invalid UTF-8 sequence received from client.")
"""How uvicorn complains of an answer that was cut off on purpose, a refused opening, and junk from a client."""


def configure_logging(level: str) -> None:
    """Records go to standard error, with the id of the request that they belong to."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(_FORMAT))
    handler.addFilter(RequestIdFilter())
    handler.addFilter(reveals_something)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for library in _TALKATIVE_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """Escapes what is no printable character, and cuts long messages: they may quote what a client has sent."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """The line without a traceback."""
        text = record.message
        if len(text) > _LONGEST_CHARS:
            text = f"{text[:_LONGEST_CHARS]}… ({len(text)} characters)"
        record.message = text if text.isprintable() else "".join(map(_printable, text))
        return super().formatMessage(record)


def _printable(sign: str) -> str:
    return sign if sign.isprintable() else sign.encode("unicode_escape").decode()


def reveals_something(record: logging.LogRecord) -> bool:
    """Whether a record says anything that our own lines have not said."""
    if record.name != "uvicorn.error":
        return True
    # Who is cancelled is a client that took nothing until the server had to stop.
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and not str(record.msg).startswith(_SAID_ALREADY)
