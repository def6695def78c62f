"""The decoder on a GPU: a captured CUDA graph for each (streams, frames), codes going up and samples coming down.

Everything runs on one stream of high priority, in the order of the launches: a slot can be given to another stream as
soon as its last launch was made. The worker's main thread alone calls.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..types import CODEBOOKS, SAMPLES_PER_FRAME
from .chunks import Codes, Samples16
from .fused import FusedDecoder

AHEAD = 1
"""Launches that may be made before the one before them is read."""
ROWS = 3
"""Rows of numbers in front of the codes: the streams' sources, slots and positions, as a FusedDecoder takes them."""


@dataclass(frozen=True)
class Staging:
    """Pinned host memory of a launch, and what tells that its samples have arrived."""

    inputs: Tensor
    """int32: [ROWS, most streams], then the codes."""
    samples: Tensor
    """int16."""
    done: torch.cuda.Event


@dataclass(frozen=True)
class Launch:
    """A launch that was not read."""

    staging: Staging
    streams: int
    samples: int


def stream_counts(most: int) -> list[int]:
    """The numbers of streams that graphs are captured for, ascending to `most`: at most a half more than any below."""
    steps = (count << bit for bit in range(most.bit_length()) for count in (1, 3))
    return sorted({*(count for count in steps if count < most), most})


class GraphDecoder:
    """A ChunkDecoder that decodes up to `max_batch_frames` frames a launch."""

    ahead = AHEAD

    def __init__(self, decoder: FusedDecoder, streams: int, chunk_sizes: list[int], max_batch_frames: int) -> None:
        """Compile and capture, the largest first, which the others' memory is a part of."""
        self._decoder = decoder
        self._counts = {frames: stream_counts(min(streams, max_batch_frames // frames)) for frames in chunk_sizes}
        # Rows of numbers that begin at multiples of 16 bytes need no kernels of their own.
        self._row = -(-streams // 4) * 4
        most_frames = max(counts[-1] * frames for frames, counts in self._counts.items())
        size, device = ROWS * self._row + most_frames * CODEBOOKS, decoder.table.device
        self._inputs = torch.zeros(size, dtype=torch.int32, device=device)
        self._samples = torch.empty(most_frames * SAMPLES_PER_FRAME, dtype=torch.int16, device=device)
        self._stagings = deque(
            Staging(
                torch.zeros(size, dtype=torch.int32, pin_memory=True),
                torch.empty(len(self._samples), dtype=torch.int16, pin_memory=True),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(AHEAD + 1)
        )
        self._unread: deque[Launch] = deque()
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        shapes = [(count, frames) for frames, counts in self._counts.items() for count in counts]
        shapes.sort(key=lambda shape: shape[0] * shape[1], reverse=True)
        self._graphs = {shape: self._capture(*shape) for shape in shapes}

    def launch(self, slots: list[int], positions: list[int], codes: Codes) -> None:
        count, frames, _ = codes.shape
        counts = self._counts[frames]
        streams = counts[bisect_left(counts, count)]
        staging = self._stagings[0]
        self._stagings.rotate(-1)
        inputs = staging.inputs.numpy()
        rows = inputs[: ROWS * self._row].reshape(ROWS, self._row)
        rows[:, count:streams] = [[self._decoder.silent_slot], [self._decoder.idle_slot], [0]]
        rows[1:, :count] = slots, positions
        rows[0, :count] = np.where(rows[2, :count] == 0, self._decoder.silent_slot, slots)
        inputs[rows.size : rows.size + codes.size] = codes.reshape(-1)
        used = rows.size + streams * frames * CODEBOOKS
        samples = count * frames * SAMPLES_PER_FRAME
        with torch.cuda.stream(self._stream):
            self._inputs[:used].copy_(staging.inputs[:used], non_blocking=True)
            self._graphs[streams, frames].replay()
            staging.samples[:samples].copy_(self._samples[:samples], non_blocking=True)
            staging.done.record()
        self._unread.append(Launch(staging, count, samples))

    def read(self) -> Samples16:
        launch = self._unread.popleft()
        launch.staging.done.synchronize()
        samples: Samples16 = launch.staging.samples.numpy()[: launch.samples].reshape(launch.streams, -1)
        return samples

    @torch.inference_mode()
    def _capture(self, streams: int, frames: int) -> torch.cuda.CUDAGraph:
        """Run once, which compiles, on streams that nobody hears; then capture."""
        idle = torch.tensor([self._decoder.silent_slot, self._decoder.idle_slot, 0], dtype=torch.int32)
        self._inputs[: ROWS * self._row].copy_(idle.repeat_interleave(self._row))
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._decode(streams, frames)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._decode(streams, frames)
        return graph

    def _decode(self, streams: int, frames: int) -> None:
        sources, slots, positions = self._inputs[: ROWS * self._row].view(ROWS, -1)[:, :streams]
        codes = self._inputs[ROWS * self._row :][: streams * frames * CODEBOOKS].view(streams, frames, CODEBOOKS)
        samples = self._samples[: streams * frames * SAMPLES_PER_FRAME].view(streams, -1)
        self._decoder(codes, sources, slots, positions, samples)
