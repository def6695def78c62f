"""Making frames on a Hopper GPU: a launch for all draws and passes, one for what frames become.

The same arithmetic as `frames.PlainPredictor`, which is its reference.
"""

import torch
import triton
from torch import Tensor

from . import programs
from .frame_kernel import FrameKernel
from .frames import FrameWeights, MadeFrames, PlainPredictor, Rows

_FINISH_COLUMNS = 512


class FusedPredictor(PlainPredictor):
    """For weights and a GPU that `frame_kernel` takes. Inputs must be contiguous."""

    def __init__(self, weights: FrameWeights) -> None:
        super().__init__(weights)
        self._kernel = FrameKernel(weights)

    def draw(self, first_logits: Tensor, start: Tensor, rows: Rows, seen: Tensor) -> Tensor:
        return self._kernel.draw(first_logits, start, rows, seen)

    def logits(self, inputs: Tensor, cache: Tensor, book: int) -> Tensor:
        return self._kernel.logits(inputs, cache, book)

    def finish(self, codes: Tensor, rows: Rows, slot_inputs: Tensor) -> MadeFrames:
        return finish(self.weights, codes, rows, slot_inputs)


def finish(weights: FrameWeights, codes: Tensor, rows: Rows, slot_inputs: Tensor) -> MadeFrames:
    """As `PlainPredictor.finish`. `codes` must be contiguous."""
    count, books = codes.shape
    size, early = slot_inputs.shape[1], codes.is_cuda
    block = min(_FINISH_COLUMNS, triton.next_power_of_2(size))
    frames = torch.empty(count, books, dtype=torch.int16, device=codes.device)
    begun = torch.empty(2, count, dtype=torch.int64, device=codes.device)
    programs.finish[count, triton.cdiv(size, block)](
        codes,
        rows.slots,
        rows.text_ids,
        rows.makes_one,
        weights.code_table,
        weights.code_offsets,
        weights.text_table,
        slot_inputs,
        frames,
        begun,
        rows.words.stride(0),
        weights.ids - 1,
        weights.eos_id,
        EARLY=early,
        BOOKS=books,
        SIZE=size,
        BLOCK=block,
        launch_pdl=early,
    )
    return MadeFrames(frames, begun)
