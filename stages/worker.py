"""A worker process: the engine protocol and the loop that is the same for both stages."""

from typing import Protocol

from .messages import Command, Event


class Engine(Protocol):
    """What a stage's engine offers to the worker loop. Called from the worker's main thread alone."""

    slots: int
    """How many requests it holds at once; the orchestrator sends no more."""

    def accept(self, command: Command) -> None:
        """Take a command of this stage without computing anything. Raises RequestError for a request it cannot serve."""
        ...

    def has_work(self) -> bool:
        """Whether `step` would compute something."""
        ...

    def step(self) -> Event | None:
        """Do one batch of work and return what it made, None if there is nothing to say."""
        ...

    def close(self) -> None:
        """Give the device back. Called once, at the end of the loop."""
        ...
