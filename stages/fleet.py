"""All worker processes of a pipeline: started together, chosen by load, replaced when they die, stopped together."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import zmq

from .errors import DuotoneError
from .pipeline import STAGES, PipelineOptions, Stage, WorkerSpec
from .workers import Replica, start_replica

log = logging.getLogger(__name__)

Launch = Callable[[WorkerSpec], Awaitable[Replica]]

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
STOP_GRACE_S = 5.0


class Fleet:
    """The replicas of both stages. Event loop only."""

    def __init__(self, checkpoint: Path, options: PipelineOptions, launch: Launch | None = None) -> None:
        """`launch` starts a worker; tests pass their own."""
        self._checkpoint = checkpoint
        self._options = options
        self._context = zmq.Context()
        self._launch = launch or partial(start_replica, self._context, timeout_s=options.start_timeout_s)
        self._replicas: list[Replica] = []

    async def start(self) -> None:
        """Spawn every worker; returns when all are ready. Raises ConfigurationError or StageFailed, leaving none."""
        specs = [self._spec(stage, at) for stage in STAGES for at in range(len(self._options.stage(stage).devices))]
        outcomes = await asyncio.gather(*map(self._launch, specs), return_exceptions=True)
        self._replicas = [replica for replica in outcomes if isinstance(replica, Replica)]
        for failure in outcomes:
            if isinstance(failure, BaseException):
                await self.stop()
                raise failure

    async def stop(self) -> None:
        """End every worker. Safe to call twice."""
        replicas, self._replicas = self._replicas, []
        await asyncio.gather(*(replica.stop(STOP_GRACE_S) for replica in replicas))
        self._context.destroy(linger=0)

    async def replace(self, dead: Replica) -> Replica:
        """Start a worker in the place of one that died, again and again with a growing pause until it is ready."""
        await dead.stop(STOP_GRACE_S)
        backoff_s = FIRST_BACKOFF_S
        while True:
            await asyncio.sleep(backoff_s)
            try:
                replica = await self._launch(self._spec(dead.spec.stage, dead.spec.replica))
            except DuotoneError as error:
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
                log.error("%s; the next try comes in %.1f s", error, backoff_s)
                continue
            self._replicas[self._replicas.index(dead)] = replica
            return replica

    def _spec(self, stage: Stage, replica: int) -> WorkerSpec:
        """What a worker process is told."""
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
