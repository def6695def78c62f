"""What a stage's engine offers to the worker loop."""

from typing import TYPE_CHECKING, Protocol

from ..profiling.options import ProfilerOptions
from .messages import Event, StageCommand

if TYPE_CHECKING:
    from ..profiling.profiler import Profiler


SHORTEST_REST_S = 1e-3
"""What a worker's channel can wait: an engine that would rest for less had better step."""


class Engine(Protocol):
    """A model with the requests it works on. Called from the worker's thread alone."""

    slots: int
    """How many requests it holds at once; the orchestrator sends no more."""

    def accept(self, command: StageCommand) -> None:
        """Take a command of this stage, computing nothing. Raises RequestError for a request it cannot serve."""

    def has_work(self) -> bool:
        """Whether `step` would compute something."""

    def rest_s(self) -> float:
        """How long it had better wait for commands before its next step, of which they might then be a part."""
        return 0.0

    def step(self) -> Event | None:
        """Do one batch of work and return what it made, None if there is nothing to say."""

    def close(self) -> None:
        """Give the device back. Called once, at the end of the loop."""

    def own_profiler(self, options: ProfilerOptions) -> "Profiler | None":
        """The engine's own way to profile it; None where the worker's profilers serve."""
        return None

    def exposition(self) -> str:
        """The metrics that the engine keeps itself, in Prometheus' text format."""
        return ""
