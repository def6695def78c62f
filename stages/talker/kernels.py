"""The code predictor on a Hopper GPU: a launch for each pass, one for each draw, one for what a frame becomes.

The same arithmetic as `frames.PlainPredictor`, which is its reference.
"""

import torch
import triton
from torch import Tensor

from . import programs
from .frames import FrameWeights, PlainPredictor
from .pass_kernel import PassKernel

_FINISH_COLUMNS = 512
_DRAW_WARPS = 8


class FusedDraws(PlainPredictor):
    """What stands between a predictor's passes. `codes` must be contiguous."""

    def __init__(self, weights: FrameWeights) -> None:
        super().__init__(weights)
        self._early = weights.heads.is_cuda

    def draw(self, logits: Tensor, book: int, codes: Tensor, top_k: Tensor, cut: Tensor, noise: Tensor) -> Tensor:
        rows, entries = logits.shape
        table = self.weights.predictor_table
        chosen = table.new_empty(rows, 1, table.shape[1])
        programs.draw[(rows,)](
            logits,
            cut,
            noise,
            top_k,
            table,
            self.weights.code_offsets,
            codes,
            chosen,
            book,
            top_k.stride(0),
            EARLY=self._early,
            BOOKS=codes.shape[1],
            ENTRIES=entries,
            BLOCK=triton.next_power_of_2(entries),
            SIZE=table.shape[1],
            SIZE_BLOCK=triton.next_power_of_2(table.shape[1]),
            num_warps=_DRAW_WARPS,
            launch_pdl=self._early,
        )
        return chosen

    def finish(self, codes: Tensor, slots: Tensor, text_ids: Tensor, slot_inputs: Tensor) -> Tensor:
        rows, books = codes.shape
        size = slot_inputs.shape[1]
        block = min(_FINISH_COLUMNS, triton.next_power_of_2(size))
        frames = torch.empty(rows, books, dtype=torch.int16, device=codes.device)
        programs.finish[rows, triton.cdiv(size, block)](
            codes,
            slots,
            text_ids,
            self.weights.code_table,
            self.weights.code_offsets,
            self.weights.text_table,
            slot_inputs,
            frames,
            slots.stride(0),
            text_ids.stride(0),
            EARLY=self._early,
            BOOKS=books,
            SIZE=size,
            BLOCK=block,
            launch_pdl=self._early,
        )
        return frames


class FusedPredictor(FusedDraws):
    """For weights and a GPU that `pass_kernel` takes. Inputs of passes must be contiguous."""

    def __init__(self, weights: FrameWeights) -> None:
        super().__init__(weights)
        self._passes = PassKernel(weights)

    def logits(self, inputs: Tensor, cache: Tensor, book: int) -> Tensor:
        return self._passes.logits(inputs, cache, book)
