"""Worker processes as the API process sees them: spawn, wait until ready, watch, stop."""

import asyncio
import logging
import sys
import tempfile
from dataclasses import dataclass, field

from .channel import Context, OrchestratorChannel
from .chunking import Estimate
from .errors import ConfigurationError, StageFailed
from .messages import Command, Event, Fatal, Ping, Ready, Shutdown
from .pipeline import WorkerSpec

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
    """One worker process of one stage, its channel, and the requests that it holds. Event loop only."""

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
        return f"{self.spec.stage}-{self.spec.replica}"

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
            self.process.kill()

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
            log.warning("%s does not leave: killed", self.name)
            self.process.kill()
            await self.process.wait()
        self.channel.close()


async def start_replica(context: Context, spec: WorkerSpec, timeout_s: float) -> Replica:
    """Spawn a worker and wait until its engine is loaded and warm.

    Raises ConfigurationError with the worker's own words when it refuses to start, StageFailed when it dies without
    a word or is not ready in time.
    """
    # Once it is connected a socket needs its name no more: not even a killed server leaves it behind.
    with tempfile.TemporaryDirectory(prefix="duotone-") as folder:
        address = f"ipc://{folder}/socket"
        channel = OrchestratorChannel(context, address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", WORKER_MODULE, address, stdin=asyncio.subprocess.PIPE
        )
        replica = Replica(spec, channel, process)
        try:
            assert process.stdin is not None
            process.stdin.write(spec.model_dump_json().encode() + b"\n")
            event = await _first_event(replica, timeout_s)
        except BaseException:
            await replica.stop(grace_s=0)
            raise
    if isinstance(event, Ready):
        replica.slots = event.slots
        return replica
    await replica.stop(grace_s=5)
    if isinstance(event, Fatal):
        raise ConfigurationError(f"{replica.name}: {event.message}")
    raise StageFailed(f"{replica.name}: died while starting (exit status {process.returncode})")


async def _first_event(replica: Replica, timeout_s: float) -> Event | None:
    """What the worker says first, None when it dies without a word. Raises StageFailed when it is not ready in time."""
    said = asyncio.create_task(replica.channel.receive())
    exited = asyncio.create_task(replica.process.wait())
    try:
        await asyncio.wait({said, exited}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            await asyncio.wait({said}, timeout=DRAIN_S)
        elif not said.done():
            raise StageFailed(f"{replica.name}: not ready within {timeout_s:.0f} s")
        return said.result() if said.done() else None
    finally:
        said.cancel()
        exited.cancel()
