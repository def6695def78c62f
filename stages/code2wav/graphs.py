"""The decoder on a GPU: a captured CUDA graph for each size of a batch, codes going up and samples coming down.

Everything runs on one stream, in the order of the launches: a slot can be given to another stream as soon as its last
launch was made. The Talker's kernels in the same process are on another one. The worker's thread alone calls.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..types import CODEBOOKS, SAMPLES_PER_FRAME
from .chunks import Codes, Pcm
from .fused import Batch, FusedDecoder

AHEAD = 1
"""Launches that may be made before the one before them is read."""
ROWS = 5
"""Rows of numbers in front of the codes: all of a Batch but them."""


@dataclass(frozen=True)
class Staging:
    """Pinned host memory of a launch, and what tells that its samples have arrived."""

    inputs: Tensor
    """int32: [ROWS, row], then the codes."""
    samples: Tensor
    """int16."""
    done: torch.cuda.Event


def batch_sizes(most: int) -> list[int]:
    """The numbers of frames that graphs are captured for, ascending to `most`: a quarter of the size apart at most."""
    steps = (count << bit for bit in range(most.bit_length()) for count in (4, 5, 6, 7))
    return sorted({*(count for count in (1, 2, 3, *steps) if count < most), most})


class GraphDecoder:
    """A ChunkDecoder whose launches hold any number of frames of each stream, up to `max_batch_frames` in all."""

    ahead = AHEAD

    def __init__(self, decoder: FusedDecoder, max_batch_frames: int) -> None:
        """Compile and capture, the largest first, which the others' memory is a part of."""
        self._decoder = decoder
        self._sizes = batch_sizes(max_batch_frames)
        # Rows of numbers that begin at multiples of 16 bytes need no kernels of their own.
        self._row = (max_batch_frames // 4 + 1) * 4
        size, device = ROWS * self._row + max_batch_frames * CODEBOOKS, decoder.table.device
        self._inputs = torch.zeros(size, dtype=torch.int32, device=device)
        self._samples = torch.empty(max_batch_frames * SAMPLES_PER_FRAME, dtype=torch.int16, device=device)
        self._stagings = deque(
            Staging(
                torch.zeros(size, dtype=torch.int32, pin_memory=True),
                torch.empty(len(self._samples), dtype=torch.int16, pin_memory=True),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(AHEAD + 1)
        )
        self._unread: deque[tuple[Staging, int]] = deque()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs = {frames: self._capture(frames) for frames in reversed(self._sizes)}

    def choose(self, pending: list[int], most_frames: int, urgent: int) -> list[int]:
        """All that is pending of the first streams, as far as there is room: others with them cost next to nothing."""
        chosen = []
        for frames in pending:
            chosen.append(min(frames, self._decoder.max_frames, most_frames))
            most_frames -= chosen[-1]
        return chosen

    def launch(self, slots: list[int], positions: list[int], codes: list[Codes]) -> None:
        staging = self._stagings[0]
        self._stagings.rotate(-1)
        joined = np.concatenate(codes)
        used = len(joined)
        frames = self._sizes[bisect_left(self._sizes, used)]
        self._write(staging.inputs.numpy(), frames, slots, positions, [len(chunk) for chunk in codes])
        front = ROWS * self._row
        staging.inputs.numpy()[front : front + joined.size] = joined.reshape(-1)
        with torch.cuda.stream(self._stream):
            size, samples = front + frames * CODEBOOKS, used * SAMPLES_PER_FRAME
            self._inputs[:size].copy_(staging.inputs[:size], non_blocking=True)
            self._graphs[frames].replay()
            staging.samples[:samples].copy_(self._samples[:samples], non_blocking=True)
            staging.done.record()
        self._unread.append((staging, samples))

    def read(self) -> Pcm:
        staging, count = self._unread.popleft()
        staging.done.synchronize()
        samples: Pcm = staging.samples.numpy()[:count]
        return samples

    def _write(
        self, inputs: npt.NDArray[np.int32], frames: int, slots: list[int], positions: list[int], lengths: list[int]
    ) -> None:
        """The numbers of a batch of `frames`; those that no stream has are an idle one's."""
        sources, targets, seen, owners, begins = inputs[: ROWS * self._row].reshape(ROWS, self._row)
        count = len(slots)
        sources[count], targets[count], seen[count] = self._decoder.silent_slot, self._decoder.idle_slot, 0
        targets[:count], seen[:count] = slots, positions
        sources[:count] = np.where(seen[:count] == 0, self._decoder.silent_slot, slots)
        begins[0], begins[count + 1 : frames + 1] = 0, frames
        np.cumsum(lengths, out=begins[1 : count + 1])
        owners[:frames] = count
        owners[: begins[count]] = np.repeat(np.arange(count), lengths)

    @torch.inference_mode()
    def _capture(self, frames: int) -> torch.cuda.CUDAGraph:
        """Run once, which compiles, on a stream that nobody hears; then capture."""
        numbers = torch.zeros(ROWS * self._row, dtype=torch.int32)
        self._write(numbers.numpy(), frames, [], [], [])
        self._inputs[: len(numbers)].copy_(numbers)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._decode(frames)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._decode(frames)
        return graph

    def _decode(self, frames: int) -> None:
        front = ROWS * self._row
        sources, slots, positions, owners, begins = self._inputs[:front].view(ROWS, -1)
        codes = self._inputs[front : front + frames * CODEBOOKS].view(frames, CODEBOOKS)
        batch = Batch(
            codes, owners[:frames], begins[: frames + 1], sources[:frames], slots[:frames], positions[:frames]
        )
        self._decoder(batch, self._samples[: frames * SAMPLES_PER_FRAME])
