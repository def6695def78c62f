"""A small HTTP/1.1 client for measuring: one request at a time on a connection that is kept, bodies chunk by chunk.

It exists because the load generator shares a machine with the server: a general client spends several times as much
CPU on every chunk and on every request. A piece of a chunked body is exactly one chunk as the server wrote it, so the
times of arrival are those of the server's writes. Event loop only.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

BUFFER_BYTES = 1 << 18
OK = 200


class HttpFailure(Exception):
    """There is no answer, or not all of one; the message says why in few words, the same for the same cause."""


@dataclass(frozen=True)
class Answer:
    """An answer whose body is still to be read: `pieces` raises HttpFailure where the body is cut off."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    pieces: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces])


class Connection:
    """A connection to one server, opened when it is needed and again when the server has closed it."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        """`url` names scheme, host and port; every request carries `headers`. Raises ValueError for another URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: expected http://host:port")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._head = "".join(
            f"{name}: {value}\r\n" for name, value in {"Host": parts.netloc, **(headers or {})}.items()
        )
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @asynccontextmanager
    async def ask(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[Answer]:
        """Send a request and wait for the head of its answer. Raises HttpFailure, here or while the body is read.

        The body must be read to its end within the block; otherwise the connection is closed.
        """
        reader, writer = await self._open()
        reusable = False
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status, headers = await _read_head(reader)
            finished = asyncio.Event()
            yield Answer(status, headers, _read_body(reader, headers, finished))
            reusable = finished.is_set() and headers.get("connection", "").lower() != "close"
        finally:
            if not reusable:
                self.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._writer is not None and not self._reader.at_eof():
            return self._reader, self._writer
        self.close()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=BUFFER_BYTES, ssl=self._tls)
        except OSError as error:
            raise HttpFailure(f"no connection: {error}") from None
        self._reader, self._writer = reader, writer
        return reader, writer

    def close(self) -> None:
        """Close the connection, in the middle of an answer too."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        version, status = first.split(" ")[:2]
        if not version.startswith("HTTP/1."):
            raise HttpFailure("the answer is not HTTP")
        headers = {} if version == "HTTP/1.1" else {"connection": "close"}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(status), headers
    except (asyncio.IncompleteReadError, OSError):
        raise HttpFailure("the connection was closed before the answer") from None
    except (ValueError, asyncio.LimitOverrunError):
        raise HttpFailure("the answer is not HTTP") from None


async def _read_body(
    reader: asyncio.StreamReader, headers: dict[str, str], finished: asyncio.Event
) -> AsyncIterator[bytes]:
    """Sets `finished` when another answer can follow on the connection."""
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                yield (await reader.readexactly(size + 2))[:-2]
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # a trailer
        elif "content-length" in headers:
            missing_bytes = int(headers["content-length"])
            while missing_bytes:
                piece = await reader.read(min(missing_bytes, BUFFER_BYTES))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", missing_bytes)
                missing_bytes -= len(piece)
                yield piece
        else:
            # Its end is the connection's: nobody can tell whether it was cut off.
            while piece := await reader.read(BUFFER_BYTES):
                yield piece
            return
    except (asyncio.IncompleteReadError, OSError):
        raise HttpFailure("the answer was cut off") from None
    except (ValueError, asyncio.LimitOverrunError):
        raise HttpFailure("the body is not chunked as it should be") from None
    finished.set()
