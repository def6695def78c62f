"""Drives a Talker engine as a worker's loop does, and gathers what it says."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from duotone.stages.messages import Frames, Speak, StageCommand
from duotone.stages.talker.torch_engine import TorchTalkerEngine


@dataclass
class Answers:
    """By key: the frames so far, and the reason of the end."""

    frames: dict[int, list[list[int]]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    events: list[Frames] = field(default_factory=list)

    def take(self, event: Frames) -> None:
        """Check that a message is whole, and file it."""
        codes = np.frombuffer(event.codes, "<i2").reshape(-1, 16)
        assert len(codes) == len(event.keys)
        assert not self.reasons.keys() & set(event.keys)
        for key, frame in zip(event.keys, codes.tolist(), strict=True):
            self.frames.setdefault(key, []).append(frame)
        self.reasons |= {ended.key: ended.reason for ended in event.ended}
        self.events.append(event)

    def codes(self, key: int) -> npt.NDArray[np.int64]:
        """Int64 [frames, 16]."""
        return np.array(self.frames.get(key, []), np.int64).reshape(-1, 16)


def drive(engine: TorchTalkerEngine, commands: Iterable[tuple[int, StageCommand]]) -> Answers:
    """Give each command at its step, and step until nothing is left to do."""
    answers, due, step = Answers(), sorted(commands, key=lambda command: command[0]), 0
    while due or engine.has_work():
        while due and due[0][0] <= step:
            engine.accept(due.pop(0)[1])
        if engine.has_work():
            answers.take(engine.step())
        step += 1
    return answers


def alone(engine: TorchTalkerEngine, speak: Speak) -> npt.NDArray[np.int64]:
    """The frames of a request that nothing runs beside, int64 [frames, 16]."""
    return drive(engine, [(0, speak)]).codes(speak.key)
