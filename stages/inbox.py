"""How the stages' messages reach the dispatcher: two loops that feed the same dispatch code.

Event driven: a reader task per replica awaits its socket and puts what arrives on the dispatch queue, which the
dispatcher awaits. Polling: the dispatcher visits each replica every millisecond; what one visit finds counts as queued.
Messages of one replica come in the order it sent them, Died as its last. Event loop only.
"""

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

from ..profiling.monitor import Monitor
from .messages import Event
from .workers import DRAIN_S, Died, Replica

POLL_S = 0.001

Message = tuple[Replica, Event | Died]


class EventDrivenInbox:
    """Reader tasks in front of a queue."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self._readers: set[asyncio.Task[None]] = set()

    def watch(self, replica: Replica) -> None:
        """Start the replica's reader task; it ends with the replica."""
        reader = asyncio.create_task(self._read(replica), name=f"read {replica.name}")
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _read(self, replica: Replica) -> None:
        """Forward events until the process has ended, then Died."""
        forward = asyncio.create_task(self._forward(replica))
        exited = asyncio.create_task(replica.process.wait())
        try:
            await asyncio.wait({forward, exited}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({forward}, timeout=DRAIN_S)
            await exited
        finally:
            forward.cancel()
            exited.cancel()
        self._put(replica, replica.death())

    async def _forward(self, replica: Replica) -> None:
        """Events in the order sent, until the worker says that it is about to exit."""
        while (event := replica.heard(await replica.channel.receive())) is not None:
            self._put(replica, event)

    def _put(self, replica: Replica, event: Event | Died) -> None:
        self._monitor.queued(replica.name, time.monotonic())
        self._queue.put_nowait((replica, event))

    async def next(self) -> Message:
        """Wait for the queue."""
        replica, event = await self._queue.get()
        now_s = time.monotonic()
        self._monitor.taken(replica.name, now_s)
        self._monitor.turn(active=True, now_s=now_s)
        return replica, event

    def close(self) -> None:
        """Cancel the readers."""
        for reader in self._readers:
            reader.cancel()


class PollingInbox:
    """A round of visits whenever nothing is left of the last one, a millisecond apart when nothing is found."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._replicas: list[Replica] = []
        self._found: deque[Message] = deque()
        self._ended_s: WeakKeyDictionary[Replica, float] = WeakKeyDictionary()

    def watch(self, replica: Replica) -> None:
        """Visit the replica from the next round on."""
        self._replicas.append(replica)

    async def next(self) -> Message:
        """Visit every replica until one has something."""
        while not self._found:
            self._visit()
            self._monitor.turn(active=bool(self._found), now_s=time.monotonic())
            if not self._found:
                await asyncio.sleep(POLL_S)
        replica, event = self._found.popleft()
        self._monitor.taken(replica.name, time.monotonic())
        return replica, event

    def _visit(self) -> None:
        """Take all that has arrived from every replica, and Died from one that ended a while ago."""
        for replica in list(self._replicas):
            while (event := replica.channel.receive_nowait()) is not None:
                if (event := replica.heard(event)) is not None:
                    self._put(replica, event)
            if replica.process.returncode is not None and self._drained(replica):
                self._put(replica, replica.death())
                self._replicas.remove(replica)

    def _drained(self, replica: Replica) -> bool:
        """Whether a replica that has ended is silent for so long that nothing can be on its way any more."""
        now_s = time.monotonic()
        return now_s >= self._ended_s.setdefault(replica, now_s) + DRAIN_S

    def _put(self, replica: Replica, event: Event | Died) -> None:
        self._monitor.queued(replica.name, time.monotonic())
        self._found.append((replica, event))

    def close(self) -> None:
        """Visit nobody any more."""
        self._replicas.clear()


Inbox = EventDrivenInbox | PollingInbox
