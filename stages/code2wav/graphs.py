"""The decoder on a GPU: a captured CUDA graph for each (streams, frames), codes going up and samples coming down.

Everything runs on one stream of high priority, in the order of the launches: a slot can be given to another stream as
soon as its last launch was made. The worker's main thread alone calls.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..types import CODEBOOKS, SAMPLES_PER_FRAME
from .fused import FusedDecoder

AHEAD = 1
"""Launches that may be made before the one before them is read."""


@dataclass(frozen=True)
class Bucket:
    """A shape that a graph was captured for."""

    streams: int
    frames: int


@dataclass(frozen=True)
class Staging:
    """Pinned host memory of one launch, and what tells that its samples have arrived."""

    inputs: Tensor
    """int32: three numbers a stream (sources, slots, positions, each for all streams), then the codes."""
    samples: Tensor
    done: torch.cuda.Event


class GraphDecoder:
    """Decodes up to `max_batch_frames` frames a launch, as int16, one launch ahead of what is read."""

    ahead = AHEAD

    def __init__(self, decoder: FusedDecoder, streams: int, chunk_sizes: list[int], max_batch_frames: int) -> None:
        """Compile and capture: `chunk_sizes` frames of up to `streams` streams, in powers of two."""
        self._decoder = decoder
        device = decoder.table.device
        most = [1 << bit for bit in range((streams - 1).bit_length() + 1)]
        buckets = [
            Bucket(count, frames)
            for frames in chunk_sizes
            for count in most
            if count * frames <= max_batch_frames or count == 1
        ]
        buckets.sort(key=lambda bucket: bucket.streams * bucket.frames, reverse=True)
        inputs = max(bucket.streams * (3 + bucket.frames * CODEBOOKS) for bucket in buckets)
        samples = max(bucket.streams * bucket.frames for bucket in buckets) * SAMPLES_PER_FRAME
        self._inputs = torch.zeros(inputs, dtype=torch.int32, device=device)
        self._samples = torch.empty(samples, dtype=torch.int16, device=device)
        self._stagings = [
            Staging(
                torch.zeros(inputs, dtype=torch.int32, pin_memory=True),
                torch.empty(samples, dtype=torch.int16, pin_memory=True),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(AHEAD + 1)
        ]
        self._unread: deque[tuple[Staging, int, int]] = deque()
        self._launches = 0
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._graphs: dict[int, dict[int, torch.cuda.CUDAGraph]] = {frames: {} for frames in chunk_sizes}
        self._pool = torch.cuda.graph_pool_handle()
        for bucket in buckets:
            self._graphs[bucket.frames][bucket.streams] = self._capture(bucket)

    @torch.inference_mode()
    def _capture(self, bucket: Bucket) -> torch.cuda.CUDAGraph:
        """Run once, which compiles, on streams that nobody hears; then capture."""
        streams = bucket.streams
        idle = torch.tensor([self._decoder.silent_slot, self._decoder.idle_slot, 0], dtype=torch.int32)
        self._inputs[: 3 * streams].copy_(idle.repeat_interleave(streams))
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._decode(bucket)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._decode(bucket)
        return graph

    def _decode(self, bucket: Bucket) -> None:
        streams, frames = bucket.streams, bucket.frames
        sources, slots, positions = self._inputs[: 3 * streams].view(3, streams).unbind()
        codes = self._inputs[3 * streams : (3 + frames * CODEBOOKS) * streams].view(streams, frames, CODEBOOKS)
        samples = self._samples[: streams * frames * SAMPLES_PER_FRAME].view(streams, -1)
        self._decoder(codes, sources, slots, positions, samples)

    def launch(self, slots: list[int], positions: list[int], codes: npt.NDArray[np.int16]) -> None:
        """Begin to decode [streams, frames, CODEBOOKS]; `positions` are the frames that each stream has had."""
        count, frames, _ = codes.shape
        graphs = self._graphs[frames]
        streams = next(size for size in graphs_ascending(graphs) if size >= count)
        staging = self._stagings[self._launches % len(self._stagings)]
        self._launches += 1
        header = staging.inputs.numpy()[: 3 * streams].reshape(3, streams)
        header[:, count:] = [[self._decoder.silent_slot], [self._decoder.idle_slot], [0]]
        header[1, :count], header[2, :count] = slots, positions
        header[0, :count] = np.where(header[2, :count] == 0, self._decoder.silent_slot, slots)
        size = (3 + frames * CODEBOOKS) * streams
        staging.inputs.numpy()[3 * streams :][: codes.size] = codes.reshape(-1)
        produced = count * frames * SAMPLES_PER_FRAME
        with torch.cuda.stream(self._stream):
            self._inputs[:size].copy_(staging.inputs[:size], non_blocking=True)
            graphs[streams].replay()
            staging.samples[:produced].copy_(self._samples[:produced], non_blocking=True)
            staging.done.record()
        self._unread.append((staging, count, produced))

    def read(self) -> npt.NDArray[np.int16]:
        """[streams, frames · 1920] of the oldest launch, once it is done; valid until two launches later."""
        staging, count, produced = self._unread.popleft()
        staging.done.synchronize()
        samples: npt.NDArray[np.int16] = staging.samples.numpy()[:produced].reshape(count, -1)
        return samples


def graphs_ascending(graphs: dict[int, torch.cuda.CUDAGraph]) -> list[int]:
    """The numbers of streams that there are graphs for."""
    return sorted(graphs)
