"""Drawing codes, in the order that the model was made for.

Repetition penalty, no eos before the request's minimum, the mask, temperature, top-k, top-p. The mask is not here: an
engine keeps only the rows of `codec_head` that it leaves (`drawable_ids`). Noise is one uniform number a code, from a
generator of the request's own that gives 16 numbers a frame whatever they are used for: so a frame's numbers depend on
the seed and on how many frames there were, and on nothing else. Every operation works row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..architecture import TalkerConfig
from ..checkpoint import CONTROL_IDS
from ..types import CODEBOOKS, Sampling


def drawable_ids(config: TalkerConfig) -> Tensor:
    """Int64: the ids that code 0 may take: codes, each of which is its own index, and last the one control id, eos."""
    codes = torch.arange(config.vocab_size - CONTROL_IDS)
    return torch.cat((codes, torch.tensor([config.codec_eos_token_id])))


@dataclass(frozen=True)
class Draw:
    """How one code is drawn; requests that agree in it are drawn together."""

    temperature: float
    top_k: int
    top_p: float

    @classmethod
    def first_code(cls, sampling: Sampling) -> "Draw":
        """Of codebook 0."""
        return cls(sampling.temperature, sampling.top_k, sampling.top_p)

    @classmethod
    def later_codes(cls, sampling: Sampling) -> "Draw":
        """Of codebooks 1 … 15. A request whose temperature is 0 is greedy in all codebooks."""
        temperature = sampling.subtalker_temperature if sampling.temperature else 0.0
        return cls(temperature, sampling.subtalker_top_k, sampling.subtalker_top_p)

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Codes, int64 [rows], of float32 logits [rows, codes] and numbers in [0, 1), float32 [rows]."""
        if self.temperature == 0:
            return logits.argmax(-1)
        codes = logits.shape[-1]
        # Temperature keeps the order, so it is enough to divide what top-k leaves. topk sorts, the likeliest first.
        kept, ids = logits.topk(min(self.top_k, codes) if self.top_k else codes)
        cumulated = (kept / self.temperature).softmax(-1).cumsum(-1)
        total = cumulated[:, -1:]
        if self.top_p < 1:
            # A code stays while those before it do not reach top_p; the first always does.
            last = (cumulated[:, :-1] < self.top_p).sum(-1, keepdim=True)
            total = cumulated.gather(-1, last)
        return ids.gather(-1, torch.searchsorted(cumulated, uniform[:, None] * total))[:, 0]


@dataclass(frozen=True)
class DrawRows:
    """A batch's rows, grouped by the draws they ask for. `groups`: the draw and its rows, int64."""

    groups: tuple[tuple[Draw, Tensor], ...]

    @classmethod
    def of(cls, draws: Sequence[Draw], device: torch.device) -> "DrawRows":
        """Group one draw a row."""
        rows: dict[Draw, list[int]] = {}
        for row, draw in enumerate(draws):
            rows.setdefault(draw, []).append(row)
        return cls(tuple((draw, torch.tensor(members, device=device)) for draw, members in rows.items()))

    def __call__(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Codes, int64 [rows], of float32 logits [rows, codes] and numbers in [0, 1), float32 [rows]."""
        if len(self.groups) == 1:
            return self.groups[0][0](logits, uniform)
        codes = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        for draw, rows in self.groups:
            codes[rows] = draw(logits[rows], uniform[rows])
        return codes


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty on logits [rows, ids], where `seen` (bool, the same shape); `penalty` is [rows, 1]."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


class Noise:
    """The uniform numbers of one request. The same seed gives the same numbers on every device."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed % 2**64))

    def frame(self) -> np.typing.NDArray[np.float32]:
        """The next frame's numbers in [0, 1), float32 [16], one a codebook."""
        return self._generator.random(CODEBOOKS, dtype=np.float32)
