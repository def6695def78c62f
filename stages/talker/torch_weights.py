"""A checkpoint's Talker as the torch engine reads it: fused, folded and laid out for its device."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoint import Checkpoint
from ..types import CODEBOOKS, NO_CODE, PromptPlan
from .decoder import DecoderWeights, Linear, Rope
from .model import Talker, TextProjection, code_offsets
from .sampling import drawable_ids


def per_sequence(x: Tensor, weight: Tensor) -> Tensor:
    """The `Linear` of a CPU in float32, `weight` [1, in, out]: each sequence of the batch is a product of its own.

    So a sequence's result cannot depend on the others. In one product over all rows it does: the library picks a kernel
    by the number of rows, and kernels add up in different orders. It also peels off what is not aligned to a cache
    line, so a row must not begin in the middle of one: every size is a multiple of 16, or padded to be.
    """
    return torch.matmul(x, weight)


def _for_per_sequence(matrix: Tensor) -> Tensor:
    """[out, in] → [1, in, out]; with the outputs side by side in memory a product with one row is fastest."""
    return matrix.T.contiguous()[None]


def _as_stored(matrix: Tensor) -> Tensor:
    return matrix


def _padded(head: Tensor) -> Tensor:
    """[ids, hidden] with rows of zeros behind it, up to the next multiple of 16."""
    return F.pad(head, (0, 0, 0, -len(head) % 16))


@dataclass(frozen=True)
class TalkerWeights:
    """All that the engine computes with, on one device and in one dtype."""

    exact: bool
    """Whether sequences are kept apart in every operation: on a CPU in float32."""
    linear: Linear
    backbone: DecoderWeights
    head: Tensor
    """The rows of `codec_head` that may be drawn, eos last, padded, as `linear` wants them."""
    eos_row: int
    text_embedding: Tensor
    text_projection: TextProjection
    code_table: Tensor
    """[V + 15 · C + 1, hidden]: the embeddings of all codebooks, behind them a row of zeros for NO_CODE."""
    code_offsets: Tensor
    """Int64 [16]: the row of `code_table` at which each codebook begins."""
    predictor: DecoderWeights
    predictor_projection: tuple[Tensor, Tensor] | None
    """Matrix and bias of `small_to_mtp_projection`; None where the sizes agree."""
    predictor_tables: tuple[Tensor, ...]
    """The predictor's inputs, for each of the 16 codebooks [entries, predictor hidden]: embeddings, projected."""
    predictor_heads: tuple[Tensor, ...]
    """For codebooks 1 … 15, padded, as `linear` wants them."""
    predictor_rope: Rope
    """The angles of the 16 positions of a frame."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> "TalkerWeights":
        """Read the tensors of a checked checkpoint. Raises CheckpointError."""
        talker = Talker.load(checkpoint, device, dtype)
        exact = device.type == "cpu" and dtype == torch.float32
        predictor, projection = talker.code_predictor, talker.code_predictor.projection
        table, offsets = talker.code_table(), code_offsets(checkpoint.talker)
        drawable = drawable_ids(checkpoint.talker)
        inputs = table if projection is None else projection(table)
        arrange = _for_per_sequence if exact else _as_stored
        return cls(
            exact=exact,
            linear=per_sequence if exact else F.linear,
            backbone=_arranged(talker.model.weights(), arrange),
            head=arrange(_padded(talker.codec_head.weight[drawable.to(device)])),
            eos_row=len(drawable) - 1,
            text_embedding=talker.model.text_embedding.weight,
            text_projection=talker.text_projection,
            code_table=table,
            code_offsets=offsets.to(device),
            predictor=_arranged(predictor.model.weights(), arrange),
            predictor_projection=None if projection is None else (arrange(projection.weight), projection.bias),
            predictor_tables=tuple(inputs[:-1].tensor_split(offsets[1:])),
            predictor_heads=tuple(arrange(_padded(head)) for head in predictor.head_weights()),
            predictor_rope=Rope.table(checkpoint.talker.code_predictor_config, CODEBOOKS).to(device, dtype),
        )

    def embed_prompt(self, plan: PromptPlan) -> Tensor:
        """The inputs of a prompt, [1, positions, hidden]."""
        ids = plan.row_ids()
        codes = torch.from_numpy(ids[:, 1:].astype(np.int64)).to(self.code_table.device)
        no_code_row = len(self.code_table) - 1
        terms = F.embedding(torch.where(codes == NO_CODE, no_code_row, codes + self.code_offsets), self.code_table)
        inputs = self.embed_text(ids[:, 0].tolist()) + terms.sum(1)
        if plan.speaker is not None:
            speaker = torch.from_numpy(np.frombuffer(plan.speaker, "<f4").copy())
            inputs[plan.speaker_row] += speaker.to(inputs.device, inputs.dtype)
        return inputs[None]

    def embed_text(self, text_ids: list[int]) -> Tensor:
        """Text terms, [ids, hidden]."""
        ids = torch.tensor(text_ids, dtype=torch.int64, device=self.text_embedding.device)
        return self.text_projection(F.embedding(ids, self.text_embedding))

    def embed_frames(self, codes: Tensor) -> Tensor:
        """The code terms of the next inputs, [rows, hidden], of frames, int64 [rows, 16]."""
        return F.embedding(codes + self.code_offsets, self.code_table).sum(1)

    def first_code_logits(self, hidden: Tensor) -> Tensor:
        """Float32 [rows, eos_row + 1] of hidden states [rows, 1, hidden]."""
        return self.linear(hidden, self.head)[:, 0, : self.eos_row + 1].float()

    def later_code_logits(self, book: int, hidden: Tensor) -> Tensor:
        """Float32 [rows, C] of the predictor's hidden states [rows, 1, predictor hidden]."""
        return self.linear(hidden, self.predictor_heads[book - 1])[:, 0, : len(self.predictor_tables[book])].float()

    def project(self, hidden: Tensor) -> Tensor:
        """The Talker's hidden states as the predictor's inputs: [rows, 1, hidden] → [rows, 1, predictor hidden]."""
        if self.predictor_projection is None:
            return hidden
        matrix, bias = self.predictor_projection
        return self.linear(hidden, matrix) + bias


def _arranged(weights: DecoderWeights, arrange: Callable[[Tensor], Tensor]) -> DecoderWeights:
    """The same decoder with its matrices in another layout."""
    layers = (
        replace(
            layer,
            qkv=arrange(layer.qkv),
            output=arrange(layer.output),
            gate_up=arrange(layer.gate_up),
            down=arrange(layer.down),
        )
        for layer in weights.layers
    )
    return replace(weights, layers=tuple(layers))
