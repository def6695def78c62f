"""Code2Wav's engine: the streams that are open, which of them a step decodes, and their samples as int16.

Continuous batching: streams come and go between steps. A step decodes the same number of frames of each stream in it,
so its tensors are whole and nothing is padded; how many is up to the most urgent stream.
"""

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.profiler import record_function

from ..checkpoint import Checkpoint
from ..engine import Engine
from ..errors import RequestError
from ..messages import Abort, Decode, Event, Samples, StageCommand
from ..pipeline import Code2WavOptions
from ..types import CODEBOOKS
from .decoder import load_decoder
from .slots import SlotStates

Codes = npt.NDArray[np.int16]
"""[frames, CODEBOOKS]"""

FULL_SCALE = 32_767
"""The int16 of the sample 1.0; -1.0 is its negative, so that silence and clipping are symmetric."""


def to_int16(samples: Tensor) -> Tensor:
    """Floats to int16, on their device: clamped to -1 … 1, times FULL_SCALE, rounded to nearest (ties to even)."""
    return samples.float().clamp(-1, 1).mul(FULL_SCALE).round().to(torch.int16)


def chunk_sizes(max_chunk_frames: int) -> list[int]:
    """The numbers of frames that a step may decode of a stream, ascending: powers of two, and the largest allowed."""
    powers = [1 << bit for bit in range(max_chunk_frames.bit_length())]
    return powers if powers[-1] == max_chunk_frames else [*powers, max_chunk_frames]


@dataclass
class Stream:
    """An open stream: where its state lies and what has come of it that is not decoded yet."""

    key: int
    slot: int
    deadline_s: float
    last: bool = False
    """Whether no more frames will come."""
    pending: Codes = field(default_factory=lambda: np.empty((0, CODEBOOKS), np.int16))

    def take(self, frames: int) -> Codes:
        """The next frames, which are pending no longer."""
        taken, self.pending = self.pending[:frames], self.pending[frames:]
        return taken


class Code2WavEngine(Engine):
    """Decodes up to `slots` streams; lives in a worker process, on its main thread."""

    def __init__(self, checkpoint: Checkpoint, options: Code2WavOptions) -> None:
        torch.set_num_threads(options.threads)
        dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
        self.slots = options.slots
        self.codebook_size = checkpoint.codec.codebook_size
        self._device = options.device
        self._max_batch_frames = options.max_batch_frames
        self._chunk_sizes = chunk_sizes(min(options.max_chunk_frames, options.max_batch_frames))
        self._streams: dict[int, Stream] = {}
        self._free_slots = list(range(options.slots))
        self._decoder = load_decoder(checkpoint.codec, checkpoint.codec_weights, dtype, options.device)
        self._states = SlotStates(self._decoder, options.slots, dtype, options.device)
        self._warm_up()

    def accept(self, command: StageCommand) -> None:
        """Open or feed a stream (Decode), or forget some (Abort). A RequestError has closed the stream it is about."""
        if isinstance(command, Abort):
            for key in command.keys:
                self._close_stream(key)
            return
        assert isinstance(command, Decode)
        try:
            codes = self._read_codes(command.codes)
            stream = self._streams.get(command.key) or self._open_stream(command.key, command.deadline_s)
            if stream.last:
                raise RequestError(f"stream {command.key} has been closed by its last frames already")
        except RequestError:
            self._close_stream(command.key)
            raise
        stream.pending = np.concatenate((stream.pending, codes))
        stream.deadline_s, stream.last = command.deadline_s, command.last

    def has_work(self) -> bool:
        """Whether a stream has frames to decode or only needs to be ended."""
        return any(len(stream.pending) or stream.last for stream in self._streams.values())

    def step(self) -> Event | None:
        """Decode one chunk of the most urgent stream and of those that can go with it."""
        started_s = time.perf_counter()
        batch, frames = self._schedule()
        samples = b""
        if batch:
            codes = np.stack([stream.take(frames) for stream in batch])
            with record_function("decode chunk"):
                samples = self._decode([stream.slot for stream in batch], codes)
        ended = [stream.key for stream in self._streams.values() if stream.last and not len(stream.pending)]
        for key in ended:
            self._close_stream(key)
        if not batch and not ended:
            return None
        keys = [stream.key for stream in batch]
        step_s = time.perf_counter() - started_s
        return Samples(keys, [frames] * len(batch), samples, ended, batch=len(batch), step_s=step_s)

    def close(self) -> None:
        """Drop every stream, the weights and the states."""
        self._streams.clear()
        del self._decoder, self._states

    def _schedule(self) -> tuple[list[Stream], int]:
        """The streams of the next step, most urgent first, and how many frames it decodes of each."""
        waiting = [stream for stream in self._streams.values() if len(stream.pending)]
        if not waiting:
            return [], 0
        waiting.sort(key=lambda stream: stream.deadline_s)
        frames = max(size for size in self._chunk_sizes if size <= len(waiting[0].pending))
        ready = [stream for stream in waiting if len(stream.pending) >= frames]
        return ready[: self._max_batch_frames // frames], frames

    @torch.inference_mode()
    def _decode(self, slots: list[int], codes: Codes) -> bytes:
        """[streams, frames, CODEBOOKS] → the streams' samples one after the other, int16, little-endian."""
        rows = torch.tensor(slots, device=self._device)
        state = self._states.gather(rows)
        samples = self._decoder(torch.from_numpy(codes).to(self._device, torch.int64), state)
        self._states.scatter(rows, state)
        return to_int16(samples).cpu().numpy().astype("<i2", copy=False).tobytes()

    def _warm_up(self) -> None:
        """Compute every chunk size once: the first call of a shape pays for buffers and the choice of a kernel."""
        for frames in self._chunk_sizes:
            self._decode([0], np.zeros((1, frames, CODEBOOKS), np.int16))

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

    def _open_stream(self, key: int, deadline_s: float) -> Stream:
        if not self._free_slots:
            raise RequestError(f"all {self.slots} slots of Code2Wav are taken")
        stream = Stream(key, self._free_slots.pop(), deadline_s)
        self._states.reset(stream.slot)
        self._streams[key] = stream
        return stream

    def _close_stream(self, key: int) -> None:
        """Unknown keys are ignored: an end and an abort may cross."""
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._free_slots.append(stream.slot)
