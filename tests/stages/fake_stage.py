"""A stage whose worker is scripted by the test: the real Replica over a channel and a process that are not there."""

import asyncio

import numpy as np

from duotone.stages.inbox import POLL_S
from duotone.stages.messages import Command, Decode, Ended, Event, Frames, Samples, Shutdown
from duotone.stages.pipeline import Crew, WorkerSpec
from duotone.stages.types import SAMPLES_PER_FRAME
from duotone.stages.workers import Replica


class FakeProcess:
    """A process that ends when it is told to shut down or when the test kills it."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()

    def kill(self) -> None:
        self.end(-9)


class FakeChannel:
    """Keeps the commands and hands out what the test says."""

    def __init__(self, process: FakeProcess) -> None:
        self.sent: list[Command] = []
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._process = process

    def send(self, *commands: Command) -> None:
        self.sent += commands
        if any(isinstance(command, Shutdown) for command in commands):
            self._process.end(0)

    async def receive(self) -> Event:
        return await self.events.get()

    def receive_nowait(self) -> Event | None:
        return None if self.events.empty() else self.events.get_nowait()

    def close(self) -> None:
        pass


class FakeStages:
    """Launches a Talker and a Code2Wav replica; `say` speaks for them."""

    def __init__(self, talker_slots: int = 4, code2wav_slots: int = 4) -> None:
        self.slots = {"talker": talker_slots, "code2wav": code2wav_slots}
        self.replicas: dict[str, Replica] = {}
        self.channels: dict[str, FakeChannel] = {}
        self.processes: dict[str, FakeProcess] = {}
        self.launched: list[Crew] = []

    async def launch(self, crew: Crew) -> list[Replica]:
        process = FakeProcess()
        self.launched.append(crew)
        return [self._replica(spec, process) for spec in crew.workers]

    def _replica(self, spec: WorkerSpec, process: FakeProcess) -> Replica:
        channel = FakeChannel(process)
        replica = Replica(spec, channel, process, slots=self.slots[spec.stage])  # type: ignore[arg-type]
        self.replicas[spec.stage], self.channels[spec.stage], self.processes[spec.stage] = replica, channel, process
        return replica

    def sent(self, stage: str, kind: type) -> list:
        """The commands of one kind that a stage got so far."""
        return [command for command in self.channels[stage].sent if isinstance(command, kind)]

    async def say(self, stage: str, *events: Event) -> None:
        """Let a stage send events, and wait until the dispatcher has handled them."""
        for event in events:
            self.channels[stage].events.put_nowait(event)
        await settle()

    async def frame(self, *keys: int, ended: dict[int, str] | None = None) -> None:
        """The Talker makes one frame for each of keys; code c of key k's frames is always k."""
        codes = np.repeat(np.array(keys, np.int16)[:, None], 16, axis=1).tobytes()
        ends = [Ended(key, reason) for key, reason in (ended or {}).items()]
        await self.say("talker", Frames(list(keys), codes, ends, len(keys), 0.01))

    async def decode_all(self) -> None:
        """Code2Wav answers every chunk that it got and has not answered: sample value = the code."""
        while pending := [c for c in self.channels["code2wav"].sent if isinstance(c, Decode)]:
            self.channels["code2wav"].sent = [c for c in self.channels["code2wav"].sent if not isinstance(c, Decode)]
            for chunk in pending:
                codes = np.frombuffer(chunk.codes, np.int16).reshape(-1, 16)[:, 0]
                samples = np.repeat(codes, SAMPLES_PER_FRAME).tobytes()
                keys, frames = ([chunk.key], [len(codes)]) if len(codes) else ([], [])
                await self.say("code2wav", Samples(keys, frames, samples, [chunk.key] * chunk.last, 1, 0.01))


async def settle() -> None:
    """Let every task run until it waits, through a few visits of the polling loop."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(4 * POLL_S)
