"""API keys: who may have the server work. Reading needs none: lists, probes, metrics, the page and /docs are open."""

import hmac
from hashlib import blake2b
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ..stages.errors import ConfigurationError
from .config import HttpOptions
from .errors import KeyRefused, answer_error

_READING = {"GET", "HEAD", "OPTIONS"}


class ApiKeys:
    """The keys that are accepted, as digests, whose comparison tells nothing of a key's length. None: all may come."""

    def __init__(self, options: HttpOptions) -> None:
        """The keys of the settings and of their file. Raises ConfigurationError for a file without any."""
        keys = [key.get_secret_value() for key in options.api_keys]
        if options.api_keys_file is not None:
            keys += _read(options.api_keys_file)
        self._digests = tuple(_digest(key.encode()) for key in keys)

    @property
    def needed(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Headers) -> None:
        """Raises KeyRefused unless a request's headers hold a key that is accepted, or none is needed."""
        scheme, _, key = headers.get("authorization", "").strip().partition(" ")
        # The header as it was sent: starlette reads its bytes as latin-1.
        self.check_key(key.strip().encode("latin-1") if scheme.lower() == "bearer" else b"")

    def check_key(self, key: bytes) -> None:
        """Raises KeyRefused unless the key, empty for none, is accepted or none is needed."""
        if not self.needed:
            return
        if not key:
            raise KeyRefused("an API key is needed: send `Authorization: Bearer KEY`")
        digest = _digest(key)
        # All are compared, whichever fits.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise KeyRefused("the API key is not one of this server's")


class KeyMiddleware:
    """Answers 401, unread, to what is not just reading and brings no key. A WebSocket may do so in its first message:
    pages cannot give its opening a header.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _shows_key(scope):
            try:
                self._keys.check(Headers(scope=scope))
            except KeyRefused as error:
                response = await answer_error(HTTPConnection(scope), error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _shows_key(scope: Scope) -> bool:
    """Whether a connection has to show its key at once."""
    if scope["type"] == "websocket":
        return "authorization" in Headers(scope=scope)
    return scope["type"] == "http" and scope["method"] not in _READING


def _read(path: Path) -> list[str]:
    """One key a line; empty lines and those that begin with `#` are none."""
    try:
        lines = [line.strip() for line in path.expanduser().read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"http.api_keys_file: {path}: cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigurationError(f"http.api_keys_file: {path}: holds no key")
    return keys


def _digest(key: bytes) -> bytes:
    return blake2b(key).digest()
