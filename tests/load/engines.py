"""Engines that take as long as an H200 would and compute nothing: random codes, samples that tell whose they are."""

import time

import numpy as np

from duotone.stages.engine import Engine
from duotone.stages.messages import Abort, Decode, Ended, Frames, Samples, Speak, StageCommand
from duotone.stages.types import CODEBOOKS, SAMPLES_PER_FRAME

FRAME_BYTES = 2 * CODEBOOKS


def talker_step_s(batch: int) -> float:
    """3.6 ms for one request, 4.5 for 64, 5.4 for 128: what a step is to take at the most."""
    return 3.6e-3 + 14e-6 * batch


def code2wav_step_s(frames: int) -> float:
    """2 ms and 25 µs a frame: 3,200 times real time, less what small batches lose."""
    return 2e-3 + 25e-6 * frames


class Pace:
    """A device that begins a step when the last one has ended, however late the host asks for it."""

    def __init__(self) -> None:
        self._free_at_s = 0.0

    def take(self, step_s: float) -> None:
        """Sleep until a step that is launched now is done."""
        self._free_at_s = max(self._free_at_s, time.perf_counter()) + step_s
        time.sleep(max(0.0, self._free_at_s - time.perf_counter()))


class TimedTalker(Engine):
    """A frame of every request in each step, `max_new_frames` of each."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._left: dict[int, int] = {}
        self._pace = Pace()
        self._codes = np.random.default_rng(0).integers(0, 1024, (slots, CODEBOOKS)).astype("<i2").tobytes()

    def accept(self, command: StageCommand) -> None:
        if isinstance(command, Abort):
            for key in command.keys:
                self._left.pop(key, None)
            return
        assert isinstance(command, Speak)
        self._left[command.key] = command.sampling.max_new_frames

    def has_work(self) -> bool:
        return bool(self._left)

    def step(self) -> Frames:
        keys = list(self._left)
        step_s = talker_step_s(len(keys))
        self._pace.take(step_s)
        for key in keys:
            self._left[key] -= 1
        ended = [Ended(key, "length") for key in keys if not self._left[key]]
        for end in ended:
            del self._left[end.key]
        return Frames(keys, self._codes[: FRAME_BYTES * len(keys)], ended, len(keys), step_s)

    def close(self) -> None:
        pass


class TimedCode2Wav(Engine):
    """The most urgent streams first, all that is pending of each; a stream's samples are its key, frame by frame."""

    def __init__(self, slots: int, max_batch_frames: int) -> None:
        self.slots = slots
        self._max_batch_frames = max_batch_frames
        self._pending: dict[int, Decode] = {}
        self._pace = Pace()

    def accept(self, command: StageCommand) -> None:
        if isinstance(command, Abort):
            for key in command.keys:
                self._pending.pop(key, None)
            return
        assert isinstance(command, Decode)
        assert command.key not in self._pending, "one chunk of a stream is in flight"
        self._pending[command.key] = command

    def has_work(self) -> bool:
        return bool(self._pending)

    def step(self) -> Samples:
        batch: list[Decode] = []
        frames: list[int] = []
        for chunk in sorted(self._pending.values(), key=lambda chunk: chunk.deadline_s):
            count = len(chunk.codes) // FRAME_BYTES
            if batch and sum(frames) + count > self._max_batch_frames:
                break
            batch.append(chunk)
            frames.append(count)
            del self._pending[chunk.key]
        step_s = code2wav_step_s(sum(frames))
        self._pace.take(step_s)
        keys = [chunk.key for chunk in batch]
        samples = np.repeat(np.array(keys, "<i2"), np.array(frames) * SAMPLES_PER_FRAME).tobytes()
        return Samples(keys, frames, samples, [chunk.key for chunk in batch if chunk.last], len(batch), step_s)

    def close(self) -> None:
        pass
