"""A pipeline that speaks without models: every character of a piece is one frame whose samples are its code point."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from duotone.stages.errors import DuotoneError
from duotone.stages.talker.prompt import Reference
from duotone.stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME, PromptPlan, Sampling


def plan_of(
    text: str,
    *,
    language: str,
    speaker: str | None,
    instruction: str | None,
    non_streaming: bool | None,
    reference: Reference | None,
) -> PromptPlan:
    """A plan that the fake pipeline can read back; the choices ride along in the trailing ids."""
    said = reference.transcript.text if reference and reference.transcript else None
    heard = None if reference is None else f"{reference.x_vector[0]:g} {said}"
    choices = "\0".join(map(str, (language, speaker, instruction, non_streaming, heard)))
    return PromptPlan(rows=text.encode("utf-32-le"), trailing_text_ids=[ord(sign) for sign in choices])


def spoken(text: str) -> bytes:
    """What the fake pipeline says for a piece."""
    return np.repeat(np.frombuffer(text.encode("utf-32-le"), "<u4").astype("<i2"), SAMPLES_PER_FRAME).tobytes()


def spoken_frame(text: str, index: int) -> bytes:
    """One frame of `spoken`."""
    return spoken(text[index])


def sung_frame(_: str, index: int) -> bytes:
    """One frame of an endless tone of 440 Hz, for what only sound can show."""
    at_samples = index * SAMPLES_PER_FRAME + np.arange(SAMPLES_PER_FRAME)
    return (8000 * np.sin(2 * np.pi * 440 * at_samples / SAMPLE_RATE)).astype("<i2").tobytes()


@dataclass
class FakeStream:
    """One piece. `fail_after` chunks it raises `failure`; with a `gate`, every chunk waits for a release of it."""

    text: str
    choices: list[str]
    sampling: Sampling
    pipeline: "FakePipeline"
    prompt_positions: int = 7
    taken: int = 0
    cancelled: bool = False
    cancel_reason: str | None = None

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        pipeline = self.pipeline
        if pipeline.gate is not None:
            await pipeline.gate.acquire()
        await asyncio.sleep(0)
        if self.taken == pipeline.fail_after:
            raise pipeline.failure
        if self.taken == len(self.text):
            raise StopAsyncIteration
        self.taken += 1
        pipeline.made_chunks += 1
        return pipeline.frame(self.text, self.taken - 1)

    @property
    def running(self) -> bool:
        """Whether it would still be made."""
        return not self.cancelled and self.taken < len(self.text)

    def cancel(self, reason: str) -> None:
        if not self.cancelled:
            self.cancelled, self.cancel_reason = True, reason
            self.pipeline.cancellations.release()


@dataclass
class FakeProfiling:
    """Keeps what was asked of it; `failure` is raised by the next call. Without stages it is not configured."""

    stages: tuple[str, ...] = ()
    failure: DuotoneError | None = None
    asked: list[tuple[str, list[str] | None]] = field(default_factory=list)
    pause: asyncio.Event | None = None

    async def start(self, stages: list[str] | None) -> list[str]:
        await self._ask("start", stages)
        return [f"{stage}-0" for stage in stages or self.stages]

    async def stop(self, stages: list[str] | None) -> dict[str, list[str]]:
        await self._ask("stop", stages)
        return {f"{stage}-0": [f"/traces/{stage}.json"] for stage in stages or self.stages}

    async def _ask(self, what: str, stages: list[str] | None) -> None:
        self.asked.append((what, stages))
        if self.pause is not None:
            await self.pause.wait()
        if self.failure is not None:
            raise self.failure


@dataclass
class FakePipeline:
    """Keeps every stream that was submitted; `refusals` are raised by the next submissions, in order, None is none."""

    ready: bool = True
    refusals: list[DuotoneError | None] = field(default_factory=list)
    failure: DuotoneError | Exception | None = None
    fail_after: int | None = None
    gate: asyncio.Semaphore | None = None
    frame: Callable[[str, int], bytes] = spoken_frame
    start_error: DuotoneError | None = None
    streams: list[FakeStream] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    followed: list[bool] = field(default_factory=list)
    made_chunks: int = 0
    life: list[str] = field(default_factory=list)
    cancellations: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    profiling: FakeProfiling = field(default_factory=lambda: FakeProfiling())

    async def exposition(self) -> str:
        return "vllm:engine_steps 3\n"

    async def start(self) -> None:
        self.life.append("start")
        if self.start_error is not None:
            raise self.start_error

    async def stop(self, drain_s: float) -> None:
        self.life.append(f"stop {drain_s:g}")

    def submit(self, request_id: str, plan: PromptPlan, sampling: Sampling, follows: bool) -> FakeStream:
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        text = plan.rows.decode("utf-32-le")
        choices = "".join(map(chr, plan.trailing_text_ids)).split("\0")
        stream = FakeStream(text, choices, sampling, self)
        self.streams.append(stream)
        self.request_ids.append(request_id)
        self.followed.append(follows)
        return stream
