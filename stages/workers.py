"""Worker processes as the API process sees them: spawn, wait until ready, watch, stop.

A process holds one worker, or one of each stage; each has a channel of its own, and a Replica here.
"""

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field

import zmq

from .channel import Context, OrchestratorChannel
from .chunking import Estimate
from .errors import ConfigurationError, StageFailed
from .messages import Command, Event, Fatal, Ping, Ready, Shutdown
from .pipeline import Crew, WorkerSpec

log = logging.getLogger(__name__)

WORKER_MODULE = "duotone.stages.worker"
"""What a worker process runs."""

DRAIN_S = 0.2
"""How long after a worker's end its last message may still be on its way."""


@dataclass(frozen=True)
class Died:
    """Stands in the dispatch queue behind the last event of a worker that is gone."""

    reason: str


@dataclass(eq=False)
class Replica:
    """A worker of one stage, its process, its channel, and the requests that it holds. Event loop only."""

    spec: WorkerSpec
    channel: OrchestratorChannel
    process: asyncio.subprocess.Process
    slots: int = 0
    stopping: bool = False
    """Told to leave, or killed."""
    holds: set[int] = field(default_factory=set)
    """Keys of the requests that occupy a slot."""
    steps: Estimate = field(default_factory=Estimate)
    """How long its engine's steps take."""
    last_words: str = "its process ended"
    silent_s: float = 0.0
    """How long it has said nothing, in time that the loop has seen: a server that was stopped blames no worker."""

    @property
    def name(self) -> str:
        """`talker-0`, as logs and metrics name it."""
        return self.spec.name

    @property
    def alive(self) -> bool:
        """Whether it works: from its process's end on it gets no request, though its last words are still to come."""
        return self.process.returncode is None and not self.stopping

    @property
    def free_slots(self) -> int:
        """Slots that could take a request now; 0 when the worker is gone."""
        return self.slots - len(self.holds) if self.alive else 0

    def send(self, *commands: Command) -> None:
        """Queue commands as one message; nothing happens when the worker is gone, since its requests fail with it."""
        if self.alive:
            self.channel.send(*commands)

    def silent(self, more_s: float, most_s: float) -> None:
        """It has said nothing for `more_s` more: after a while it is asked to, after `most_s` in all it is killed."""
        self.silent_s += more_s
        if self.silent_s < most_s:
            if self.silent_s >= most_s / 4:  # An idle worker is woken seldom.
                self.send(Ping())
        elif self.alive:
            self.last_words = f"it hung: not a word for {most_s:g} s"
            self.stopping = True
            self._kill()

    def heard(self, event: Event) -> Event | None:
        """Keep a worker's last words, which are None to the dispatcher: Died follows; pass on everything else."""
        self.silent_s = 0.0
        if isinstance(event, Fatal):
            self.last_words = event.message
            return None
        return event

    def death(self) -> Died:
        """What the dispatcher is told of a process that has ended."""
        return Died(f"{self.name}: {self.last_words} (exit status {self.process.returncode})")

    async def stop(self, grace_s: float) -> None:
        """Ask the worker to leave, kill it when it does not, and release its channel."""
        self.send(Shutdown())
        self.stopping = True
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            if grace_s:
                log.warning("%s does not leave: killed", self.name)
            self._kill()
            await self.process.wait()
        self.channel.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # another worker of the process may have been faster
            self.process.kill()


async def start_crew(context: Context, crew: Crew, timeout_s: float) -> list[Replica]:
    """Spawn a process and wait until the engines of all its workers are loaded and warm.

    Raises ConfigurationError with a worker's own words when it refuses to start, StageFailed when the process cannot be
    spawned, dies without a word or is not ready in time.
    """
    try:
        # Once it is connected a socket needs its name no more: not even a killed server leaves it behind.
        with tempfile.TemporaryDirectory(prefix="duotone-", ignore_cleanup_errors=True) as folder:
            replicas = await _spawned(context, crew, folder)
            try:
                await _all_ready(crew, replicas, timeout_s)
            except BaseException as error:
                await stop_replicas(replicas, grace_s=5 if isinstance(error, ConfigurationError) else 0)
                raise
            return replicas
    except (OSError, zmq.ZMQError) as error:
        raise StageFailed(f"{crew.name}: cannot be started: {error}") from error


async def stop_replicas(replicas: Iterable[Replica], grace_s: float) -> None:
    """Stop some replicas together: a process ends when all its workers have left."""
    await asyncio.gather(*(replica.stop(grace_s) for replica in replicas))


async def _spawned(context: Context, crew: Crew, folder: str) -> list[Replica]:
    """The process, told who is in it. Raises OSError and zmq.ZMQError."""
    channels: list[OrchestratorChannel] = []
    try:
        addresses = [f"ipc://{folder}/{worker.name}" for worker in crew.workers]
        channels.extend(OrchestratorChannel(context, address) for address in addresses)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", WORKER_MODULE, *addresses), stdin=asyncio.subprocess.PIPE
        )
    except BaseException:
        for channel in channels:
            channel.close()
        raise
    assert process.stdin is not None
    process.stdin.write(crew.model_dump_json().encode() + b"\n")
    return [Replica(spec, channel, process) for spec, channel in zip(crew.workers, channels, strict=True)]


async def _all_ready(crew: Crew, replicas: Iterable[Replica], timeout_s: float) -> None:
    """Wait for what every worker says first. Raises ConfigurationError when one refuses, else StageFailed."""
    try:
        async with asyncio.timeout(timeout_s):
            said = await asyncio.gather(*map(_first_event, replicas))
    except TimeoutError:
        raise StageFailed(f"{crew.name}: not ready within {timeout_s:.0f} s") from None
    for replica, event in zip(replicas, said, strict=True):
        if isinstance(event, Fatal):
            raise ConfigurationError(f"{replica.name}: {event.message}")
    for replica, event in zip(replicas, said, strict=True):
        if not isinstance(event, Ready):
            raise StageFailed(f"{crew.name}: died while starting (exit status {replica.process.returncode})")
        replica.slots = event.slots


async def _first_event(replica: Replica) -> Event | None:
    """None from a worker that dies without a word."""
    said = asyncio.create_task(replica.channel.receive())
    exited = asyncio.create_task(replica.process.wait())
    try:
        await asyncio.wait({said, exited}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({said}, timeout=DRAIN_S)
        return said.result() if said.done() else None
    finally:
        said.cancel()
        exited.cancel()
