"""Code2Wav's engine: the streams that are open, which of them a step decodes, and their samples as int16.

Continuous batching: streams come and go between steps, and the most urgent ones go first. On a GPU a step is launched
before the one before it is read, so that the device always has work.
"""

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.profiler import record_function

from ..checkpoint import Checkpoint
from ..engine import SHORTEST_REST_S, Engine
from ..errors import RequestError
from ..messages import Abort, Decode, Event, Samples, StageCommand
from ..pipeline import Code2WavOptions
from ..types import CODEBOOKS, FRAME_S, SAMPLES_PER_FRAME
from .chunks import ChunkDecoder, Codes, make_decoder

FIRST_BATCH_FRAMES = 64
"""At most so many frames are decoded in a step with the first ones of a stream, for which somebody waits in silence.

Not where steps begin an interval apart: they are to be few.
"""

URGENT_S = FRAME_S
"""A listener who runs dry within this time goes before throughput."""


@dataclass
class Stream:
    """An open stream: where its state lies and what has come of it that is not decoded yet."""

    key: int
    slot: int
    deadline_s: float
    last: bool = False
    """Whether no more frames will come."""
    pending: Codes = field(default_factory=lambda: np.empty((0, CODEBOOKS), np.int16))
    decoded: int = 0
    """Frames that were given to the decoder."""
    unread: int = 0
    """Launches with frames of it whose samples were not read."""

    def take(self, frames: int) -> Codes:
        """The next frames, which are pending no longer."""
        taken, self.pending = self.pending[:frames], self.pending[frames:]
        self.decoded += frames
        self.unread += 1
        return taken

    @property
    def over(self) -> bool:
        """Whether all its samples have been read."""
        return self.last and not len(self.pending) and not self.unread


@dataclass(frozen=True)
class Step:
    """A launch that was not read, and how many frames it holds of each stream."""

    streams: list[Stream]
    frames: list[int]
    launched_s: float


class Code2WavEngine(Engine):
    """Decodes up to `slots` streams; lives in a worker process, on its main thread."""

    def __init__(self, checkpoint: Checkpoint, options: Code2WavOptions, decoder: ChunkDecoder | None = None) -> None:
        """`decoder` None: the one for the options' device."""
        torch.set_num_threads(options.threads)
        self.slots = options.slots
        self.codebook_size = checkpoint.codec.codebook_size
        self._max_batch_frames = options.max_batch_frames
        self._streams: dict[int, Stream] = {}
        self._free_slots = list(range(options.slots))
        self._decoder = decoder or make_decoder(checkpoint, options)
        self._unread: deque[Step] = deque()
        self._read_s = 0.0
        self._interval_s = options.step_interval_ms / 1000
        self._due_s = 0.0

    def accept(self, command: StageCommand) -> None:
        """Open or feed a stream (Decode), or forget some (Abort). A RequestError has closed the stream it is about."""
        if isinstance(command, Abort):
            for key in command.keys:
                self._close_stream(key)
            return
        assert isinstance(command, Decode)
        try:
            codes = self._read_codes(command.codes)
        except RequestError:
            self._close_stream(command.key)
            raise
        stream = self._streams.get(command.key)
        if stream is None:
            stream = self._streams[command.key] = Stream(command.key, self._free_slots.pop(), command.deadline_s)
        stream.pending = np.concatenate((stream.pending, codes))
        stream.deadline_s, stream.last = command.deadline_s, command.last

    def has_work(self) -> bool:
        """Whether a stream has frames to decode, samples to be read, or only needs to be ended."""
        return bool(self._unread) or any(len(stream.pending) or stream.over for stream in self._streams.values())

    def rest_s(self) -> float:
        """Until the next step is due, unless there is something to say before."""
        over = any(stream.over for stream in self._streams.values())
        return 0.0 if self._unread or over else self._early_s()

    def step(self) -> Event | None:
        """Decode a chunk of the most urgent stream and of those that can go with it; say what an older step made."""
        launched = self._early_s() < SHORTEST_REST_S and self._launch()
        if launched and len(self._unread) <= self._decoder.ahead:
            return None
        said = self._read() if self._unread else Samples([], [], b"", [], batch=0, step_s=0.0)
        said.ended = [stream.key for stream in self._streams.values() if stream.over]
        for key in said.ended:
            self._close_stream(key)
        return said if said.keys or said.ended else None

    def close(self) -> None:
        """Drop every stream, the weights and the states."""
        self._streams.clear()
        del self._decoder

    def _early_s(self) -> float:
        """How long it is until the next step is due."""
        return max(0.0, self._due_s - time.perf_counter())

    def _waiting(self) -> list[Stream]:
        """The streams with frames to decode."""
        return [stream for stream in self._streams.values() if len(stream.pending)]

    def _launch(self) -> bool:
        """Launch the next step; False if there is nothing to decode."""
        launched_s = time.perf_counter()
        waiting = self._waiting()
        if not waiting:
            return False
        self._due_s = launched_s + self._interval_s * min(1, 2 * len(self._streams) / self.slots)
        waiting.sort(key=lambda stream: stream.deadline_s)
        hurry = not self._interval_s and any(stream.decoded == 0 for stream in waiting)
        most_frames = min(self._max_batch_frames, FIRST_BATCH_FRAMES) if hurry else self._max_batch_frames
        soon_s = time.monotonic() + URGENT_S
        urgent = sum(stream.deadline_s < soon_s for stream in waiting)
        chosen = self._decoder.choose([len(stream.pending) for stream in waiting], most_frames, urgent)
        batch = [stream for stream, frames in zip(waiting, chosen, strict=True) if frames]
        lengths = [frames for frames in chosen if frames]
        positions = [stream.decoded for stream in batch]
        codes = [stream.take(frames) for stream, frames in zip(batch, lengths, strict=True)]
        with record_function("decode chunk"):
            self._decoder.launch([stream.slot for stream in batch], positions, codes)
        self._unread.append(Step(batch, lengths, launched_s))
        return True

    def _read(self) -> Samples:
        """The samples of the oldest step that was not read, without those of streams that have been closed since."""
        step = self._unread.popleft()
        with record_function("read samples"):
            samples = self._decoder.read()
        now_s = time.perf_counter()
        # A step that was launched early has waited for the one before it.
        step_s, self._read_s = now_s - max(step.launched_s, self._read_s), now_s
        keys, frames, heard = [], [], []
        ends = np.cumsum(step.frames) * SAMPLES_PER_FRAME
        for stream, count, part in zip(step.streams, step.frames, np.split(samples, ends[:-1]), strict=True):
            stream.unread -= 1
            if self._streams.get(stream.key) is stream:
                keys.append(stream.key)
                frames.append(count)
                heard.append(part)
        pcm = samples if len(heard) == len(step.streams) else np.concatenate([samples[:0], *heard])
        return Samples(keys, frames, pcm.astype("<i2", copy=False).tobytes(), [], batch=len(keys), step_s=step_s)

    def _read_codes(self, codes: bytes) -> Codes:
        """[frames, CODEBOOKS]. Raises RequestError for a number of bytes or an id that no frame can have."""
        frame_bytes = 2 * CODEBOOKS
        if len(codes) % frame_bytes:
            raise RequestError(f"{len(codes)} bytes of codes are no whole number of frames of {frame_bytes}", "codes")
        frames = np.frombuffer(codes, "<i2").reshape(-1, CODEBOOKS)
        outside = (frames < 0) | (frames >= self.codebook_size)
        if outside.any():
            raise RequestError(f"code {frames[outside][0]} is not in 0 … {self.codebook_size - 1}", "codes")
        return frames

    def _close_stream(self, key: int) -> None:
        """Unknown keys are ignored: an end and an abort may cross."""
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._free_slots.append(stream.slot)
