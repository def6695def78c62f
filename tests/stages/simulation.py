"""The orchestrator over stages that take an H200's time, on a clock that jumps: the same load gives the same figures.

The event loop never waits: where nothing is ready its clock moves to the next timer. So the orchestrator's own code
runs, and every figure is a function of the model of the stages alone.
"""

import asyncio
import itertools
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from duotone.profiling.measures import Record, Summary, summarise
from duotone.profiling.metrics import Metrics
from duotone.profiling.monitor import Monitor
from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.code2wav.chunks import Codes, Pcm, choose_alike, chunk_sizes
from duotone.stages.code2wav.engine import Code2WavEngine
from duotone.stages.messages import Abort, Ended, Frames, Samples, Shutdown, Speak
from duotone.stages.orchestrator import Orchestrator
from duotone.stages.pipeline import PIPELINES, Code2WavOptions, Crew, PipelineOptions
from duotone.stages.request import FRAME_BYTES, Stream
from duotone.stages.types import SAMPLES_PER_FRAME, PromptPlan, Sampling
from duotone.stages.workers import Replica

from ..golden_outputs import CUSTOM_VOICE
from .fake_stage import FakeChannel, FakeProcess

CLIENT_S = 2e-3
"""From the last samples of an answer to the next request of its client."""
ALIKE = (62,)
"""Frames of each answer."""
MIXED = tuple(20 + 37 * index % 85 for index in range(85))
"""Answers of 20 to 104 frames: no two streams stay in step."""
TWO_CORES = {
    **{"talker_s": 5e-3, "talker_frame_s": 0.9e-3, "prefill_s": 3e-3, "code2wav_s": 4.5e-3, "frame_s": 2e-3},
    **{"max_chunk_frames": 8, "max_batch_frames": 8, "alike": True},
}
"""A Model of the bundled voice's stages on a CPU core each."""
PLAN = PromptPlan(rows=bytes(68 * 40))


class _JumpingSelector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for somebody"
        self.now_s += max(0.0, timeout)
        return []


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


class _Channel(FakeChannel):
    """One whose worker can wait for commands."""

    def __init__(self, process: FakeProcess) -> None:
        super().__init__(process)
        self.told = asyncio.Event()

    def send(self, *commands: Any) -> None:
        super().send(*commands)
        self.told.set()

    async def commands(self, block: bool) -> list[Any]:
        if block and not self.sent:
            self.told.clear()
            await self.told.wait()
        commands, self.sent = self.sent, []
        return commands


@dataclass
class Model:
    """Times of both stages, each on a device of its own. The defaults are an H200's."""

    streams: int
    talker_s: float = 4.5e-3
    """A step: a frame of every request."""
    talker_frame_s: float = 0.0
    """More for each of them."""
    prefill_s: float = 0.0
    """More for each request that begins in it; one at a time does."""
    code2wav_s: float = 2e-3
    frame_s: float = 25e-6
    """A step of Code2Wav, and more for each frame in it."""
    max_chunk_frames: int = 16
    max_batch_frames: int = 256
    alike: bool = False
    """A step of Code2Wav takes as many frames of each of its streams, as on a CPU."""
    code2wav_steps: int = 0
    launched: int = 0
    """Frames of the last step."""

    # ---- a ChunkDecoder that only takes time

    ahead = 0

    def choose(self, pending: list[int], most_frames: int, urgent: int) -> list[int]:
        if self.alike:
            return choose_alike(chunk_sizes(self.max_chunk_frames), pending, most_frames, urgent)
        before = [0, *itertools.accumulate(pending)]
        return [min(frames, max(0, most_frames - ahead)) for frames, ahead in zip(pending, before, strict=False)]

    def launch(self, slots: list[int], positions: list[int], codes: list[Codes]) -> None:
        self.launched = sum(map(len, codes))

    def read(self) -> Pcm:
        return np.zeros(self.launched * SAMPLES_PER_FRAME, np.int16)

    # ---- the workers

    async def talker(self, channel: _Channel) -> None:
        left: dict[int, int] = {}
        waiting: list[Speak] = []
        while True:
            for command in await channel.commands(block=not left and not waiting):
                match command:
                    case Speak():
                        waiting.append(command)
                    case Abort():
                        left = {key: frames for key, frames in left.items() if key not in command.keys}
                    case Shutdown():
                        return
            if not left and not waiting:
                continue
            begins = waiting[: 1 if self.prefill_s else None]
            del waiting[: len(begins)]
            left |= {speak.key: speak.sampling.max_new_frames for speak in begins}
            step_s = self.talker_s + self.talker_frame_s * len(left) + self.prefill_s * len(begins)
            await asyncio.sleep(step_s)
            keys = list(left)
            left = {key: frames - 1 for key, frames in left.items() if frames > 1}
            ended = [Ended(key, "length") for key in keys if key not in left]
            channel.events.put_nowait(Frames(keys, bytes(FRAME_BYTES * len(keys)), ended, len(keys), step_s))

    async def code2wav(self, channel: _Channel) -> None:
        options = Code2WavOptions(slots=self.streams, max_batch_frames=self.max_batch_frames)
        engine = Code2WavEngine(read_checkpoint(CUSTOM_VOICE), options, self)
        while True:
            for command in await channel.commands(block=not engine.has_work()):
                if isinstance(command, Shutdown):
                    return
                engine.accept(command)
            event = engine.step() if engine.has_work() else None
            if isinstance(event, Samples):
                if event.keys:
                    self.code2wav_steps += 1
                    await asyncio.sleep(self.code2wav_s + self.frame_s * self.launched)
                channel.events.put_nowait(event)


async def _listen(stream: Stream, record: Record) -> None:
    async for samples in stream:
        record.arrivals_s.append(time.monotonic())
        record.chunk_bytes.append(len(samples))
    record.ended_s = time.monotonic()


async def _run(
    model: Model, requests: int, frames: Sequence[int], workers: list[asyncio.Task[None]]
) -> tuple[Summary, list[Record]]:
    async def launch(crew: Crew) -> list[Replica]:
        (spec,) = crew.workers
        process = FakeProcess()
        channel = _Channel(process)
        run = model.talker if spec.stage == "talker" else model.code2wav
        workers.append(asyncio.create_task(run(channel)))
        return [Replica(spec, channel, process, slots=model.streams)]  # type: ignore[arg-type]

    options = PipelineOptions(
        code2wav=Code2WavOptions(max_chunk_frames=model.max_chunk_frames), orchestration="event_driven"
    )
    orchestrator = Orchestrator(PIPELINES["qwen3_tts"], Path("none"), options, Metrics("m"), Monitor(), launch)
    await orchestrator.start()
    records: list[Record] = []

    async def client(number: int) -> None:
        await asyncio.sleep(number * model.talker_s / 2)
        while len(records) < requests:
            record = Record(len(records), time.monotonic())
            records.append(record)
            count = frames[record.index % len(frames)]
            sampling = Sampling(seed=0, min_new_frames=count, max_new_frames=count)
            await _listen(orchestrator.submit("r", PLAN, sampling), record)
            assert record.samples == count * SAMPLES_PER_FRAME
            await asyncio.sleep(CLIENT_S)

    async with asyncio.TaskGroup() as group:
        for number in range(model.streams):
            group.create_task(client(number))
    await orchestrator.stop(drain_s=0)
    return summarise(records, (), model.streams, None, 0.0), records


def simulate(model: Model, requests: int, frames: Sequence[int] = ALIKE) -> tuple[Summary, list[Record]]:
    """So many answers to `model.streams` clients, each asking again when its answer has ended; all are exact."""
    loop = _JumpingLoop()
    with mock.patch.object(time, "monotonic", loop.time), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_run(model, requests, frames, []))


def main() -> None:
    print("| streams | answers | audio s/s | first audio p50 / p99, ms | ran dry | chunks an answer | Code2Wav steps |")
    print("|---|---|---|---|---|---|---|")
    slow = {"code2wav_s": 5e-3, "frame_s": 50e-6}
    cases = [(n, frames, {}) for n in (1, 16, 64, 128) for frames in (ALIKE, MIXED)]
    cases += [(n, frames, slow) for n in (64, 128) for frames in (ALIKE, MIXED)]
    for streams, frames, times in cases:
        model = Model(streams, **times)
        summary, records = simulate(model, requests=max(16, 8 * streams), frames=frames)
        first = summary.first_audio_s
        assert first is not None
        figures = (
            f"{streams}{', slow Code2Wav' if times else ''}",
            "62 frames" if frames is ALIKE else "20 to 104",
            f"{summary.audio_s_per_s:.0f}",
            f"{1e3 * first.p50:.0f} / {1e3 * first.p99:.0f}",
            summary.dry_listeners,
            f"{sum(len(record.chunk_bytes) for record in records) / len(records):.1f}",
            f"{model.code2wav_steps / len(records):.2f}",
        )
        print("| " + " | ".join(map(str, figures)) + " |")


if __name__ == "__main__":
    main()
