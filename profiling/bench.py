"""A closed-loop load generator over HTTP: so many concurrent streams, each asking for the next answer after its last.

It speaks to any server with OpenAI's POST /v1/audio/speech. Nothing is done to a chunk but noting when it came and how
long it is. Figures come from measures.py, after the load.
"""

import asyncio
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from .http_client import OK, Answer, Connection, HttpFailure
from .measures import Record, Summary, flaw, summarise
from .scrape import StageLoad, scraped, stage_loads

ROUTE = "/v1/audio/speech"
REQUESTS_PER_STREAM = 4
LEAST_REQUESTS = 8

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
    """Measured requests; by default four for each stream, and at least eight."""
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
        return self.requests or max(LEAST_REQUESTS, REQUESTS_PER_STREAM * streams)

    def body(self, index: int) -> bytes:
        """The JSON body of the request of that index."""
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
        return json.dumps(fields).encode()


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

    def connection(self) -> Connection:
        """A connection of one stream. Raises ValueError for what is no URL."""
        headers = {"Content-Type": "application/json", "Accept": "*/*"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return Connection(self.url, headers)


def ignore(record: Record) -> None:
    """Nobody wants to know that a request has ended."""


async def run_level(target: Target, load: Load, streams: int, ended: Callable[[Record], None] = ignore) -> Level:
    """Warm up, then measure. `ended` is told of each measured request. A failed request is a record like any other."""
    connections = [target.connection() for _ in range(streams)]
    requests = load.requests_at(streams)
    try:
        warmup = await _closed_loop(connections, load, range(requests, requests + load.warmup_rounds * streams))
        before = await scraped(connections[0])
        begun_s, cpu_s = time.monotonic(), time.process_time()
        records = await _closed_loop(connections, load, range(requests), ended)
        wall_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
        stages = stage_loads(before, await scraped(connections[0]), wall_s)
    finally:
        for connection in connections:
            connection.close()
    return Level(summarise(records, warmup, streams, load.frames, cpu_s), records, stages)


async def _closed_loop(
    connections: Sequence[Connection], load: Load, indices: Iterable[int], ended: Callable[[Record], None] = ignore
) -> list[Record]:
    """Every index is asked for once, by the next connection that is free; the records in the order of their indices."""
    waiting = iter(indices)
    records: list[Record] = []

    async def stream(connection: Connection) -> None:
        for index in waiting:
            record = await _ask(connection, load.body(index), index, load.timeout_s)
            records.append(record)
            ended(record)

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(stream(connection))
    return sorted(records, key=lambda record: record.index)


async def _ask(connection: Connection, body: bytes, index: int, timeout_s: float) -> Record:
    record = Record(index, sent_s=time.monotonic())
    try:
        async with asyncio.timeout(timeout_s), connection.ask("POST", ROUTE, body) as answer:
            record.status = answer.status
            if answer.status == OK:
                await _listen(answer, record)
            else:
                record.failure = _refusal(answer.status, await answer.read())
    except HttpFailure as failure:
        record.failure = str(failure)
    except TimeoutError:
        record.failure = f"no end within {timeout_s:g} s"
    record.ended_s = time.monotonic()
    return record


async def _listen(answer: Answer, record: Record) -> None:
    """The hot path: for each chunk of every stream, so nothing else is done here."""
    arrivals_s, chunk_bytes, now_s = record.arrivals_s, record.chunk_bytes, time.monotonic
    async for chunk in answer.pieces:
        arrivals_s.append(now_s())
        chunk_bytes.append(len(chunk))
    record.failure = flaw(chunk_bytes)


class _Error(msgspec.Struct):
    code: str | int | None = None


class _Envelope(msgspec.Struct):
    error: _Error


def _refusal(status: int, body: bytes) -> str:
    """The status, and the code of OpenAI's error envelope where there is one."""
    try:
        code = msgspec.json.decode(body, type=_Envelope).error.code
    except msgspec.DecodeError:
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
