"""Commands that a worker answers: asked of many replicas at once, answered through the dispatcher."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from .messages import Exposition, Profiled, Scrape, StartProfile, StopProfile
from .workers import Replica

Answer = TypeVar("Answer", Exposition, Profiled)


class Questions:
    """Open questions and who has to answer them. Event loop only."""

    def __init__(self) -> None:
        self.closed = False
        self._open: dict[tuple[Replica, type], asyncio.Future[Exposition | Profiled | None]] = {}

    async def ask(
        self,
        replicas: Sequence[Replica],
        question: Scrape | StartProfile | StopProfile,
        kind: type[Answer],
        timeout_s: float,
    ) -> list[Answer | None]:
        """Each replica's answer, None from one that is dead or did not answer in time.

        Who asks for what has been asked already, and is not answered yet, shares the answer.
        """
        futures = []
        for replica in replicas:
            future = self._open.get((replica, kind))
            if future is None:
                future = asyncio.get_running_loop().create_future()
                if replica.alive and not self.closed:
                    self._open[replica, kind] = future
                    replica.send(question)
                else:
                    future.set_result(None)
            futures.append(future)
        if futures:
            await asyncio.wait(futures, timeout=timeout_s)
        answers = [future.result() if future.done() else None for future in futures]
        return [answer if isinstance(answer, kind) else None for answer in answers]

    def open(self, replica: Replica, kind: type) -> bool:
        """Whether a replica still owes an answer of a kind."""
        return (replica, kind) in self._open

    def answered(self, replica: Replica, answer: Exposition | Profiled) -> None:
        """A worker has answered."""
        if (future := self._open.pop((replica, type(answer)), None)) is not None:
            future.set_result(answer)

    def close(self) -> None:
        """The server stops: no answer is waited for any more."""
        self.closed = True
        for replica, _ in list(self._open):
            self.lost(replica)

    def lost(self, replica: Replica) -> None:
        """A worker is gone and answers nothing any more."""
        for asked in [asked for asked in self._open if asked[0] is replica]:
            self._open.pop(asked).set_result(None)
