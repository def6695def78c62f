"""Profiling of running stages, from the API process: who is profiled now, and the workers' answers.

The workers' profilers swallow a second start and a stop without a start; here they are conflicts. Event loop only.
"""

import asyncio
from collections.abc import Sequence

from .errors import NotReady, ProfilingConflict, RequestError, StageFailed
from .fleet import Fleet
from .messages import Profiled, StartProfile, StopProfile
from .pipeline import STAGES, PipelineOptions
from .questions import Questions
from .workers import Replica

ANSWER_TIMEOUT_S = 300.0
"""Writing a long trace takes minutes."""


class ProfileControl:
    """Starts and stops the profilers of all replicas of the stages named."""

    def __init__(self, fleet: Fleet, questions: Questions, options: PipelineOptions) -> None:
        self._fleet = fleet
        self._questions = questions
        self.stages = tuple(stage for stage in STAGES if options.stage(stage).profiler_config is not None)
        """The stages that can be profiled."""
        self._running: set[Replica] = set()
        self._one_at_a_time = asyncio.Lock()

    async def start(self, stages: Sequence[str] | None) -> list[str]:
        """Start all of these stages' profilers, or none; returns the replicas. None names every configured stage.

        Raises RequestError for a stage that is unknown or not configured, ProfilingConflict, NotReady, StageFailed.
        """
        async with self._one_at_a_time:
            replicas = self._replicas(stages)
            if running := [replica.name for replica in replicas if replica in self._running]:
                raise ProfilingConflict(f"profiling runs already on {', '.join(running)}")
            answers = await self._ask(replicas, StartProfile())
            if failures := _failures(answers):
                await self._ask([r for r, answer in answers.items() if r.alive and not answer.error], StopProfile())
                raise StageFailed(failures)
            self._running.update(replicas)
            return [replica.name for replica in replicas]

    async def stop(self, stages: Sequence[str] | None) -> dict[str, list[str]]:
        """Stop and write; returns each replica's files. None names every stage that is profiled.

        Raises as `start` does.
        """
        async with self._one_at_a_time:
            if stages is None:
                replicas = [replica for replica in self._fleet.replicas() if replica in self._running]
            else:
                replicas = self._replicas(stages)
            if not replicas:
                raise ProfilingConflict("profiling does not run")
            if idle := [replica.name for replica in replicas if replica not in self._running]:
                raise ProfilingConflict(f"profiling does not run on {', '.join(idle)}")
            self._running.difference_update(replicas)
            answers = await self._ask(replicas, StopProfile())
            if failures := _failures(answers):
                raise StageFailed(failures)
            return {replica.name: answer.files for replica, answer in answers.items()}

    def lost(self, replica: Replica) -> None:
        """A worker is gone, and what it profiled with it."""
        self._running.discard(replica)

    def _replicas(self, stages: Sequence[str] | None) -> list[Replica]:
        """Every replica of the stages, all alive."""
        for stage in stages or ():
            if stage not in self.stages:
                known = ", ".join(self.stages)
                raise RequestError(f"no stage '{stage}' can be profiled; configured are: {known}", param="stages")
        replicas = [replica for replica in self._fleet.replicas() if replica.spec.stage in (stages or self.stages)]
        if dead := [replica.name for replica in replicas if not replica.alive]:
            raise NotReady(f"not running: {', '.join(dead)}")
        return replicas

    async def _ask(self, replicas: list[Replica], command: StartProfile | StopProfile) -> dict[Replica, Profiled]:
        """Every replica's answer; one that does not come is an error of that replica."""
        answers = await self._questions.ask(replicas, command, Profiled, ANSWER_TIMEOUT_S)
        for replica, answer in zip(replicas, answers, strict=True):
            if answer is None:
                self._questions.lost(replica)  # No excuse any more for one that hangs.
        silent = Profiled([], "no answer, or the worker died")
        return {replica: answer or silent for replica, answer in zip(replicas, answers, strict=True)}


def _failures(answers: dict[Replica, Profiled]) -> str:
    """What went wrong where; empty when nothing did."""
    return "; ".join(f"{replica.name}: {answer.error}" for replica, answer in answers.items() if answer.error)
