"""What decodes chunks of streams that lie in slots: the one seam between the engine and a device."""

from bisect import bisect_right
from collections import deque
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..checkpoint import Checkpoint
from ..pipeline import Code2WavOptions
from .decoder import load_decoder
from .layers import State, Stateful

Codes = npt.NDArray[np.int16]
"""[frames, CODEBOOKS]"""
Pcm = npt.NDArray[np.int16]
"""[frames · SAMPLES_PER_FRAME], one stream after the other"""

FULL_SCALE = 32_767
"""The int16 of the sample 1.0; -1.0 is its negative, so that silence and clipping are symmetric."""

URGENT_FRAMES = 2
"""After so many a listener who was about to run dry has time."""


class ChunkDecoder(Protocol):
    """Remembers what streams were decoded in its slots. Launches take effect in their order."""

    ahead: int
    """How many launches may be made before an older one is read: 0 where a launch computes at once."""

    def choose(self, pending: list[int], most_frames: int, urgent: int) -> list[int]:
        """How many of the pending frames of each stream a launch should hold, given the most urgent stream first.

        At least one of the first stream's, at most `most_frames` in all. The listeners of the first `urgent` streams
        have nothing to hear soon.
        """

    def launch(self, slots: list[int], positions: list[int], codes: list[Codes]) -> None:
        """Begin to decode some frames of each of some streams, as chosen; those at position 0 begin in silence.

        `positions`: the frames that each stream has had.
        """

    def read(self) -> Pcm:
        """The samples of the oldest launch that was not read, once they are there; valid until the next call."""


def to_int16(samples: Tensor) -> Tensor:
    """Floats to int16, on their device: clamped to -1 … 1, times FULL_SCALE, rounded to nearest (ties to even)."""
    return samples.float().clamp(-1, 1).mul(FULL_SCALE).round().to(torch.int16)


class SlotStates:
    """What a decoder remembers of up to `slots` streams: one preallocated tensor a stateful layer, a row a slot.

    A step gathers its streams' rows and scatters new ones.
    """

    def __init__(self, decoder: nn.Module, slots: int, dtype: torch.dtype, device: str) -> None:
        self.buffers: State = {
            layer: torch.zeros((slots, *layer.state_shape), dtype=layer.state_dtype or dtype, device=device)
            for layer in decoder.modules()
            if isinstance(layer, Stateful) and 0 not in layer.state_shape
        }

    def reset(self, slot: int) -> None:
        """Begin a new stream in a slot: silence, and no frame seen."""
        for buffer in self.buffers.values():
            buffer[slot].zero_()

    def gather(self, slots: Tensor) -> State:
        """Copies of the rows of `slots`, int64 [streams], in its order."""
        return {layer: buffer.index_select(0, slots) for layer, buffer in self.buffers.items()}

    def scatter(self, slots: Tensor, state: State) -> None:
        """Put the rows back after a step."""
        for layer, rows in state.items():
            self.buffers[layer].index_copy_(0, slots, rows)


class TorchDecoder:
    """The plain modules, in PyTorch, on any device: as many frames of each stream, so that its tensors are whole."""

    ahead = 0

    def __init__(self, checkpoint: Checkpoint, options: Code2WavOptions, sizes: list[int], dtype: torch.dtype) -> None:
        """`sizes`: the numbers of frames that a launch may hold of a stream, ascending from 1."""
        self._device, self._sizes = options.device, sizes
        self._decoder = load_decoder(checkpoint.codec, checkpoint.codec_weights, dtype, options.device)
        self._states = SlotStates(self._decoder, options.slots, dtype, options.device)
        self._decoded: deque[Pcm] = deque()
        for frames in sizes:
            for streams in range(1, min(options.max_batch_frames // frames, options.slots) + 1):
                # The first call of a shape pays for buffers and the choice of a kernel.
                codes = torch.zeros(streams, frames, checkpoint.codec.num_quantizers, dtype=torch.int64)
                self._decode(list(range(streams)), codes)

    def choose(self, pending: list[int], most_frames: int, urgent: int) -> list[int]:
        return choose_alike(self._sizes, pending, most_frames, urgent)

    def launch(self, slots: list[int], positions: list[int], codes: list[Codes]) -> None:
        for slot, position in zip(slots, positions, strict=True):
            if position == 0:
                self._states.reset(slot)
        self._decoded.append(self._decode(slots, torch.from_numpy(np.stack(codes))))

    def read(self) -> Pcm:
        return self._decoded.popleft()

    @torch.inference_mode()
    def _decode(self, slots: list[int], codes: Tensor) -> Pcm:
        rows = torch.tensor(slots, device=self._device)
        state = self._states.gather(rows)
        samples = self._decoder(codes.to(self._device, torch.int64), state)
        self._states.scatter(rows, state)
        return to_int16(samples).flatten().cpu().numpy()


def chunk_sizes(max_chunk_frames: int) -> list[int]:
    """Powers of two, and the largest allowed, ascending."""
    powers = [1 << bit for bit in range(max_chunk_frames.bit_length())]
    return powers if powers[-1] == max_chunk_frames else [*powers, max_chunk_frames]


def choose_alike(sizes: list[int], pending: list[int], most_frames: int, urgent: int) -> list[int]:
    """As many frames of each stream, one of `sizes`, where every frame takes its time.

    The urgent ones go together, none with more than all can give or need, and nobody delays them who has time. Else as
    many as the first can give: streams that have more wait, since one long chunk costs less than several short ones.
    """
    limit = max(1, min(URGENT_FRAMES, *pending[:urgent], most_frames // urgent)) if urgent else pending[0]
    frames = sizes[bisect_right(sizes, limit) - 1]
    room = most_frames // frames
    chosen = []
    for at, count in enumerate(pending):
        fits = at < urgent if urgent else sizes[bisect_right(sizes, count) - 1] == frames
        chosen.append(frames if room and fits else 0)
        room -= chosen[-1] > 0
    return chosen


def make_decoder(checkpoint: Checkpoint, options: Code2WavOptions) -> ChunkDecoder:
    """The decoder for the device that the options name, warm. Raises CheckpointError."""
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
    max_chunk_frames = min(options.max_chunk_frames, options.max_batch_frames)
    if options.device != "cuda":
        return TorchDecoder(checkpoint, options, chunk_sizes(max_chunk_frames), dtype)
    from .fused import FusedDecoder  # Triton comes with PyTorch for GPUs alone
    from .graphs import GraphDecoder

    plain = load_decoder(checkpoint.codec, checkpoint.codec_weights, torch.float32, options.device)
    fused = FusedDecoder(plain, checkpoint.codec, dtype, options.slots, max_chunk_frames)
    return GraphDecoder(fused, options.max_batch_frames)
