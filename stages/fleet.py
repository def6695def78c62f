"""All worker processes of a pipeline: started together, chosen by load, replaced when they die, stopped together."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import zmq

from .channel import Context
from .errors import DuotoneError
from .pipeline import STAGES, Crew, PipelineOptions, Stage, WorkerSpec
from .workers import Replica, start_crew, stop_replicas

log = logging.getLogger(__name__)

Launch = Callable[[Crew], Awaitable[list[Replica]]]

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
STOP_GRACE_S = 5.0


class Fleet:
    """The replicas of both stages. Event loop only."""

    def __init__(self, checkpoint: Path, options: PipelineOptions, launch: Launch | None = None) -> None:
        """`launch` starts a process; tests pass their own."""
        self._checkpoint = checkpoint
        self._options = options
        self._context: Context | None = None
        self._launch = launch or self._start_crew
        self._replicas: list[Replica] = []
        self._ended: set[Replica] = set()
        """Those in whose place a process is to come."""

    async def start(self) -> None:
        """Spawn every process; returns when all are ready. Raises ConfigurationError or StageFailed, leaving none."""
        self._context = zmq.Context()
        starts = [asyncio.create_task(self._begin(crew)) for crew in self._crews()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.stop()
            raise
        self._replicas.sort(key=lambda replica: (STAGES.index(replica.spec.stage), replica.spec.replica))

    async def _start_crew(self, crew: Crew) -> list[Replica]:
        assert self._context is not None
        return await start_crew(self._context, crew, self._options.start_timeout_s)

    async def _begin(self, crew: Crew) -> None:
        self._replicas += await self._launch(crew)

    async def stop(self) -> None:
        """End every worker. Safe to call twice."""
        replicas, self._replicas = self._replicas, []
        await stop_replicas(replicas, STOP_GRACE_S)
        if self._context is not None:
            self._context.destroy(linger=0)

    async def replace(self, dead: Replica) -> list[Replica]:
        """Start a process in the place of one that ended, again and again with a growing pause until it is ready.

        Called for each of its workers: the last time replaces all, the others give nobody.
        """
        await dead.stop(STOP_GRACE_S)
        self._ended.add(dead)
        crew = [replica for replica in self._replicas if replica.process is dead.process]
        if not crew or not self._ended.issuperset(crew):
            return []
        self._ended.difference_update(crew)
        backoff_s = FIRST_BACKOFF_S
        while True:
            await asyncio.sleep(backoff_s)
            try:
                started = await self._launch(Crew(workers=tuple(replica.spec for replica in crew)))
            except DuotoneError as error:
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
                log.error("%s; the next try comes in %.1f s", error, backoff_s)
                continue
            for old, new in zip(crew, started, strict=True):
                self._replicas[self._replicas.index(old)] = new
            return started

    def _crews(self) -> list[Crew]:
        """Who goes into which process."""
        talkers, decoders = (
            [self._spec(stage, at) for at in range(len(self._options.stage(stage).devices))] for stage in STAGES
        )
        crews = []
        for talker in talkers:
            mates = [spec for spec in decoders if _share(talker, spec)][:1]
            decoders = [spec for spec in decoders if spec not in mates]
            crews.append(Crew(workers=(talker, *mates)))
        return crews + [Crew(workers=(spec,)) for spec in decoders]

    def _spec(self, stage: Stage, replica: int) -> WorkerSpec:
        """What a worker is told."""
        options = self._options.stage(stage)
        own = options.model_copy(update={"devices": (options.devices[replica],)})
        return WorkerSpec.model_validate(
            {"stage": stage, "replica": replica, "checkpoint": self._checkpoint, stage: own}
        )

    def replicas(self, stage: Stage | None = None) -> list[Replica]:
        """The replicas of one stage or of both, dead ones included until they are replaced."""
        return [replica for replica in self._replicas if stage in (None, replica.spec.stage)]

    @property
    def ready(self) -> bool:
        """Whether each stage has a worker that is up."""
        return all(any(replica.alive for replica in self.replicas(stage)) for stage in STAGES)

    def free_pair(self) -> tuple[Replica, Replica] | None:
        """The Talker and the Code2Wav for the next request, None unless both have a free slot.

        Of pairs on one device, so that a pipeline of its own on each stays one, else of all, that with the most room.
        """
        talkers, decoders = ([r for r in self.replicas(stage) if r.free_slots] for stage in STAGES)

        def fitness(pair: tuple[Replica, Replica]) -> tuple[bool, int, int]:
            free_slots = sorted(replica.free_slots for replica in pair)
            return pair[0].spec.device == pair[1].spec.device, free_slots[0], free_slots[1]

        return max(itertools.product(talkers, decoders), key=fitness, default=None)


def _share(talker: WorkerSpec, decoder: WorkerSpec) -> bool:
    """Whether two workers belong into one process.

    On one GPU, their kernels then run beside each other, where two processes would make it change contexts for each
    step. Two torch profilers in a process would end it, and Nsight Compute waits forever for one with two
    threads that launch.
    """
    assert talker.talker is not None
    profilers = [config.profiler for spec in (talker, decoder) if (config := spec.options.profiler_config)]
    apart = "cuda" in profilers or profilers == ["torch", "torch"]
    return talker.device == decoder.device != "cpu" and talker.talker.engine == "vllm" and not apart
