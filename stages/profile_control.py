"""Profiling of running stages, from the API process: who is profiled now, and the workers' answers.

The workers' profilers swallow a second start and a stop without a start; here they are conflicts. Event loop only.
"""

import asyncio
import logging
from collections.abc import Sequence

from .errors import NotReady, ProfilerFailed, ProfilingConflict, RequestError, StageFailed
from .fleet import Fleet
from .messages import Profiled, StartProfile, StopProfile
from .pipeline import STAGES, PipelineOptions
from .questions import Questions
from .workers import Replica

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 300.0
"""Writing a long trace takes minutes."""


class ProfileControl:
    """Starts and stops the profilers of all replicas of the stages named."""

    def __init__(self, fleet: Fleet, questions: Questions, options: PipelineOptions) -> None:
        self._fleet = fleet
        self._questions = questions
        self.stages = tuple(stage for stage in STAGES if options.stage(stage).profiler_config is not None)
        """The stages that can be profiled."""
        self._running: dict[str, Replica] = {}
        """By name; one that has died stays until it is missed at the stop."""
        self._one_at_a_time = asyncio.Lock()

    async def start(self, stages: Sequence[str] | None) -> list[str]:
        """Start all of these stages' profilers, or none; returns the replicas. None names every configured stage.

        Raises RequestError for a stage that is unknown or not configured, ProfilingConflict, NotReady, StageFailed.
        """
        async with self._one_at_a_time:
            replicas = self._replicas(stages)
            if dead := [replica.name for replica in replicas if not replica.alive]:
                raise NotReady(f"not running: {', '.join(dead)}")
            if running := [replica.name for replica in replicas if self._running.get(replica.name) is replica]:
                raise ProfilingConflict(f"profiling runs already on {', '.join(running)}")
            answers = await self._ask(replicas, StartProfile())
            try:
                _files(answers)
            except StageFailed:
                await self._ask([r for r, answer in answers.items() if answer and not answer.error], StopProfile())
                raise
            self._running |= {replica.name: replica for replica in replicas}
            return [replica.name for replica in replicas]

    async def stop(self, stages: Sequence[str] | None) -> dict[str, list[str]]:
        """Stop and write; returns each replica's files. None names every stage that is profiled.

        Raises as `start` does; StageFailed also for a worker that has died, or was replaced, since its start.
        """
        async with self._one_at_a_time:
            names = [replica.name for replica in self._replicas(stages)]
            idle = [name for name in names if name not in self._running]
            if idle and (stages or len(idle) == len(names)):
                raise ProfilingConflict(f"profiling does not run on {', '.join(idle)}")
            replicas = [self._running.pop(name) for name in names if name in self._running]
            return _files(await self._ask(replicas, StopProfile()))

    async def drain(self) -> None:
        """Wait until no start or stop is under way."""
        async with self._one_at_a_time:
            pass

    def _replicas(self, stages: Sequence[str] | None) -> list[Replica]:
        """Every replica of the stages, dead ones included. Raises RequestError."""
        for stage in stages or ():
            if stage not in self.stages:
                known = ", ".join(self.stages)
                raise RequestError(f"no stage '{stage}' can be profiled; configured are: {known}", param="stages")
        return [replica for replica in self._fleet.replicas() if replica.spec.stage in (stages or self.stages)]

    async def _ask(
        self, replicas: list[Replica], command: StartProfile | StopProfile
    ) -> dict[Replica, Profiled | None]:
        """Every replica's answer, None where none came. Raises NotReady when the server does not wait for one."""
        answers = await self._questions.ask(replicas, command, Profiled, ANSWER_TIMEOUT_S)
        for replica, answer in zip(replicas, answers, strict=True):
            if answer is None:
                self._questions.lost(replica)  # No excuse any more for one that hangs.
            elif answer.files:
                # Whoever asked may have left.
                log.info("%s: profiled into %s", replica.name, ", ".join(answer.files))
        if self._questions.closed and None in answers:
            raise NotReady("the server is stopping")
        return dict(zip(replicas, answers, strict=True))


def _files(answers: dict[Replica, Profiled | None]) -> dict[str, list[str]]:
    """What each replica wrote. Raises StageFailed, ProfilerFailed when none is gone; both tell what was written too."""
    files, failures = {}, []
    for replica, answer in answers.items():
        if answer is None:
            failures.append(f"{replica.name}: {'no answer' if replica.alive else 'the worker has died'}")
        elif answer.error:
            failures.append(f"{replica.name}: {answer.error}")
        else:
            files[replica.name] = answer.files
    if failures:
        written = [f"{name} wrote {', '.join(paths)}" for name, paths in files.items() if paths]
        raise (StageFailed if None in answers.values() else ProfilerFailed)("; ".join(failures + written))
    return files
