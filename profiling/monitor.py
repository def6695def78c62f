"""The orchestrator's monitor: what its queues and its loop did, second by second.

A window counts what happened between two borders one second apart. The high-water mark of a queue is raised when a
message is put in, so a burst that is drained before the border still shows; a message that is still queued at the
border opens the next window, and no message raises two windows' marks otherwise. Only the event loop writes to it.
"""

import json
import time
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

WINDOW_S = 1.0
RECENT_WINDOWS = 60
"""A scrape sees the largest mark of so many windows, since it comes far less often than once a second."""


@dataclass
class Queue:
    """Messages queued now, and the most that were queued at once in the running window; in a closed one, at its end."""

    size: int = 0
    high_water: int = 0

    def put(self) -> None:
        """A message was queued."""
        self.size += 1
        self.high_water = max(self.high_water, self.size)

    def take(self) -> None:
        """A message was taken out."""
        self.size -= 1


@dataclass(frozen=True)
class Window:
    """One second of the orchestrator. `start_s` is `time.monotonic()` of its opening border."""

    start_s: float
    turns_idle: int
    turns_active: int
    dispatch: Queue
    outputs: dict[str, Queue]
    """Per replica: its messages that the dispatcher has not taken yet."""
    requests_in_flight: int


@dataclass
class Monitor:
    """Counts into the running window and closes it at its border. Every call says what time it is."""

    keep_all: bool = False
    """Keep every window, for `write`; otherwise the recent ones."""
    start_s: float = field(default_factory=time.monotonic)
    requests_in_flight: int = 0
    dispatch: Queue = field(default_factory=Queue)
    outputs: dict[str, Queue] = field(default_factory=dict)
    turns_idle: int = 0
    turns_active: int = 0

    def __post_init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=None if self.keep_all else RECENT_WINDOWS)
        self.total_turns = {"idle": 0, "active": 0}

    def queued(self, replica: str, now_s: float) -> None:
        """A message of a replica was put on the dispatch queue."""
        self.advance(now_s)
        self.dispatch.put()
        self.outputs.setdefault(replica, Queue()).put()

    def taken(self, replica: str, now_s: float) -> None:
        """The dispatcher took a message of a replica off the queue."""
        self.advance(now_s)
        self.dispatch.take()
        self.outputs[replica].take()

    def turn(self, active: bool, now_s: float) -> None:
        """The dispatcher's loop went round, with or without something to do."""
        self.advance(now_s)
        self.total_turns["active" if active else "idle"] += 1
        if active:
            self.turns_active += 1
        else:
            self.turns_idle += 1

    def gone(self, replica: str) -> None:
        """A replica is no more; its queue is left out of the windows from the next border on."""
        self.outputs.pop(replica, None)

    def advance(self, now_s: float) -> None:
        """Close every window whose border has passed."""
        while now_s >= self.start_s + WINDOW_S:
            self.windows.append(self._close())
            self.start_s += WINDOW_S
            self.turns_idle = self.turns_active = 0
            for queue in (self.dispatch, *self.outputs.values()):
                queue.high_water = queue.size

    def _close(self) -> Window:
        """The running window as it stands."""
        return Window(
            start_s=self.start_s,
            turns_idle=self.turns_idle,
            turns_active=self.turns_active,
            dispatch=replace(self.dispatch),
            outputs={name: replace(queue) for name, queue in self.outputs.items()},
            requests_in_flight=self.requests_in_flight,
        )

    def recent_high_water(self, replica: str | None = None) -> int:
        """The largest mark of the dispatch queue, or of a replica's output queue, in the recent and running windows."""
        recent = [*list(self.windows)[-RECENT_WINDOWS:], self._close()]
        if replica is None:
            return max(window.dispatch.high_water for window in recent)
        return max(window.outputs[replica].high_water for window in recent if replica in window.outputs)

    def write(self, path: Path, now_s: float) -> None:
        """Every window so far, the running one last, as a JSON list."""
        self.advance(now_s)
        path.write_text(json.dumps([asdict(window) for window in [*self.windows, self._close()]], indent=1) + "\n")
