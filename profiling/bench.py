"""A closed-loop load generator over HTTP: so many concurrent streams, each asking for the next answer after its last.

It speaks to any server with OpenAI's POST /v1/audio/speech. Nothing is done to a chunk but noting when it came and how
long it is. Figures come from measures.py, after the load. The client is aiohttp's, since it shares a machine with
the server: it spends some 25 µs of CPU on a chunk, httpx 130.
"""

import asyncio
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from .measures import Record, Summary, flaw, summarise
from .scrape import StageLoad, scraped, stage_loads

ROUTE = "/v1/audio/speech"
REQUESTS_PER_STREAM = 8
SOON_S = 10.0
"""How long a server may take to tell of itself."""

TEXTS = (
    "The morning train leaves the harbour station at a quarter past seven.",
    "Please remember to water the plants on the balcony before you go.",
    "She opened the letter slowly, read it twice, and began to laugh.",
    "The museum is closed on Mondays, but its garden stays open until dusk.",
    "A light rain is expected in the north, with sunshine later in the day.",
    "He had never seen the sea before, and for a while he said nothing.",
    "Your table will be ready in ten minutes; would you like to wait outside?",
    "Turn left after the old bridge, then follow the river for two miles.",
    "The committee will meet again on the third of May to settle the budget.",
    "Nobody knew who had painted the door green, yet everybody liked it.",
    "Add the flour a little at a time and stir until the dough is smooth.",
    "Thank you for calling. All our lines are busy at the moment.",
)
"""Short enough that a server speaks each of them in one piece."""


@dataclass(frozen=True)
class Load:
    """What a server is asked for, whatever the number of streams."""

    requests: int | None = None
    """Measured requests; by default REQUESTS_PER_STREAM for each stream."""
    warmup_rounds: int = 1
    """Requests of each stream that come before and are not measured."""
    texts: tuple[str, ...] = TEXTS
    frames: int | None = None
    """The exact length of every answer; otherwise the model ends it."""
    seed: int | None = None
    """Of the first request; each next one has the next."""
    model: str = "tts-1"
    voice: str = "alloy"
    timeout_s: float = 120.0
    """An answer that is not whole by then has failed."""

    def requests_at(self, streams: int) -> int:
        """The number of measured requests."""
        return self.requests or REQUESTS_PER_STREAM * streams

    def body(self, index: int) -> dict[str, str | int]:
        """The fields of the request of that index."""
        fields: dict[str, str | int] = {
            "model": self.model,
            "input": self.texts[index % len(self.texts)],
            "voice": self.voice,
            "response_format": "pcm",
        }
        if self.frames is not None:
            fields |= {"min_new_frames": self.frames, "max_new_frames": self.frames}
        if self.seed is not None:
            fields["seed"] = self.seed + index
        return fields


@dataclass(frozen=True)
class Level:
    """The outcome of one number of streams."""

    summary: Summary
    records: list[Record]
    stages: list[StageLoad]
    """What the server's workers did meanwhile, as far as it says so."""


@dataclass(frozen=True)
class Target:
    """Where the requests go. Not part of what is written down: the key is nobody's business."""

    url: str
    """Scheme, host and port; a trailing `/v1`, as OpenAI's clients want it, does no harm."""
    api_key: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what is no URL of a server."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.url}: expected http://host:port")

    def session(self, timeout_s: float = SOON_S) -> aiohttp.ClientSession:
        """Its connections, as many as are asked for at once; an answer has to be whole after `timeout_s`."""
        parts = urlsplit(self.url)
        return aiohttp.ClientSession(
            f"{parts.scheme}://{parts.netloc}",
            headers={} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"},
            skip_auto_headers=("Accept-Encoding",),
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )


def ignore(record: Record) -> None:
    """Nobody wants to know that a request has ended."""


async def run_level(target: Target, load: Load, streams: int, ended: Callable[[Record], None] = ignore) -> Level:
    """Warm up, then measure. `ended` is told of each measured request. A failed request is a record like any other."""
    requests = load.requests_at(streams)
    gc.collect()
    gc.freeze()  # A collector that visits all that is here would be taken for a server that stands still.
    async with target.session(load.timeout_s) as session:
        warmup = await _closed_loop(session, load, streams, range(requests, requests + load.warmup_rounds * streams))
        before = await scraped(session)
        begun_s, cpu_s = time.monotonic(), time.process_time()
        records = await _closed_loop(session, load, streams, range(requests), ended)
        wall_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
        stages = stage_loads(before, await scraped(session), wall_s)
    return Level(summarise(records, warmup, streams, load.frames, cpu_s), records, stages)


async def _closed_loop(
    session: aiohttp.ClientSession,
    load: Load,
    streams: int,
    indices: Iterable[int],
    ended: Callable[[Record], None] = ignore,
) -> list[Record]:
    """Every index is asked for once, by the next stream that is free; the records in the order of their indices."""
    waiting = iter(indices)
    records: list[Record] = []

    async def stream() -> None:
        for index in waiting:
            record = await _ask(session, load, index)
            records.append(record)
            ended(record)

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return sorted(records, key=lambda record: record.index)


async def _ask(session: aiohttp.ClientSession, load: Load, index: int) -> Record:
    record = Record(index, sent_s=time.monotonic())
    try:
        async with session.post(ROUTE, json=load.body(index), allow_redirects=False) as answer:
            record.status = answer.status
            if answer.status == HTTPStatus.OK:
                await _listen(answer, record)
            else:
                record.failure = _refusal(answer.status, await answer.read())
    except TimeoutError:
        record.failure = f"no end within {load.timeout_s:g} s"
    except aiohttp.ClientError as error:
        record.failure = _failure(error)
    record.ended_s = time.monotonic()
    return record


async def _listen(answer: aiohttp.ClientResponse, record: Record) -> None:
    """The hot path: for each chunk of every stream, as the server wrote it, so nothing else is done here."""
    arrivals_s, chunk_bytes, now_s = record.arrivals_s, record.chunk_bytes, time.monotonic
    whole_pieces = "Transfer-Encoding" not in answer.headers
    size_bytes = 0
    async for piece, ends_chunk in answer.content.iter_chunks():
        size_bytes += len(piece)
        if size_bytes and (ends_chunk or whole_pieces):
            arrivals_s.append(now_s())
            chunk_bytes.append(size_bytes)
            size_bytes = 0
    record.failure = flaw(chunk_bytes)


def _failure(error: aiohttp.ClientError) -> str:
    """Why there is no answer, or not all of one, in few words, the same for the same cause."""
    match error:
        case aiohttp.ClientPayloadError():
            return "the answer was cut off"
        case aiohttp.ClientConnectorError():
            return f"no connection: {error.os_error}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return "the connection was closed before the answer"
    return "the answer is not HTTP"


def _refusal(status: int, body: bytes) -> str:
    """The status, and the code of OpenAI's error envelope where there is one."""
    try:
        code = json.loads(body)["error"]["code"]
    except (ValueError, TypeError, KeyError):
        code = None
    return f"HTTP {status}" if code is None else f"HTTP {status} {code}"


@dataclass(frozen=True)
class Results:
    """What is written down of a run, so that every figure can be made again from it."""

    url: str
    machine: str
    load: Load
    levels: list[Level]


def machine() -> str:
    """The operating system and the number of CPUs."""
    return f"{platform.platform()}, {os.cpu_count()} CPUs"


def write_results(path: Path, target: Target, load: Load, levels: Sequence[Level]) -> None:
    """All records and summaries as JSON. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = Results(target.url, machine(), load, list(levels))
    path.write_text(json.dumps(asdict(results)) + "\n", encoding="utf-8")
