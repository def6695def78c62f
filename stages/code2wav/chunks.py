"""What decodes chunks of streams that lie in slots: the one seam between the engine and a device."""

from collections import deque
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..checkpoint import Checkpoint
from ..pipeline import Code2WavOptions
from .decoder import load_decoder
from .slots import SlotStates

Codes = npt.NDArray[np.int16]
"""[frames, CODEBOOKS], or [streams, frames, CODEBOOKS]"""
Samples16 = npt.NDArray[np.int16]
"""[streams, frames · SAMPLES_PER_FRAME]"""

FULL_SCALE = 32_767
"""The int16 of the sample 1.0; -1.0 is its negative, so that silence and clipping are symmetric."""


class ChunkDecoder(Protocol):
    """Remembers what streams were decoded in its slots. Launches take effect in their order."""

    ahead: int
    """How many launches may be made before an older one is read: 0 where a launch computes at once."""

    def launch(self, slots: list[int], positions: list[int], codes: Codes) -> None:
        """Begin to decode as many frames of each of some streams; those at position 0 begin in silence.

        `positions`: the frames that each stream has had. `codes`: [streams, frames, CODEBOOKS].
        """
        ...

    def read(self) -> Samples16:
        """The samples of the oldest launch that was not read, once they are there; valid until the next call."""
        ...


def to_int16(samples: Tensor) -> Tensor:
    """Floats to int16, on their device: clamped to -1 … 1, times FULL_SCALE, rounded to nearest (ties to even)."""
    return samples.float().clamp(-1, 1).mul(FULL_SCALE).round().to(torch.int16)


class TorchDecoder:
    """The plain modules, in PyTorch, on any device."""

    ahead = 0

    def __init__(self, checkpoint: Checkpoint, options: Code2WavOptions, sizes: list[int], dtype: torch.dtype) -> None:
        self._device = options.device
        self._decoder = load_decoder(checkpoint.codec, checkpoint.codec_weights, dtype, options.device)
        self._states = SlotStates(self._decoder, options.slots, dtype, options.device)
        self._decoded: deque[Samples16] = deque()
        for frames in sizes:
            # The first call of a shape pays for buffers and the choice of a kernel.
            self._decode([0], torch.zeros(1, frames, checkpoint.codec.num_quantizers, dtype=torch.int64))

    def launch(self, slots: list[int], positions: list[int], codes: Codes) -> None:
        for slot, position in zip(slots, positions, strict=True):
            if position == 0:
                self._states.reset(slot)
        self._decoded.append(self._decode(slots, torch.from_numpy(codes)))

    def read(self) -> Samples16:
        return self._decoded.popleft()

    @torch.inference_mode()
    def _decode(self, slots: list[int], codes: Tensor) -> Samples16:
        rows = torch.tensor(slots, device=self._device)
        state = self._states.gather(rows)
        samples = self._decoder(codes.to(self._device, torch.int64), state)
        self._states.scatter(rows, state)
        decoded: Samples16 = to_int16(samples).cpu().numpy()
        return decoded


def make_decoder(checkpoint: Checkpoint, options: Code2WavOptions, chunk_sizes: list[int]) -> ChunkDecoder:
    """The decoder for the device that the options name, warm. Raises CheckpointError and ConfigurationError."""
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
    if options.device != "cuda":
        return TorchDecoder(checkpoint, options, chunk_sizes, dtype)
    from .fused import FusedDecoder  # Triton comes with PyTorch for GPUs alone
    from .graphs import GraphDecoder

    plain = load_decoder(checkpoint.codec, checkpoint.codec_weights, torch.float32, options.device)
    fused = FusedDecoder(plain, checkpoint.codec, dtype, options.slots, chunk_sizes[-1])
    del plain
    torch.cuda.empty_cache()
    return GraphDecoder(fused, options.slots, chunk_sizes, options.max_batch_frames)
