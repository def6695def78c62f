"""What the torch engine computes: prompts and steps of the backbone over key/value buffers, and whole frames.

Both parts keep sequences apart in every operation, so that a sequence's numbers are the same alone and in any batch
(`per_sequence` says why that takes care): attention over buffers of different length is done sequence by sequence, and
the frames of a batch, which all have 16 positions, together.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..architecture import TalkerConfig, TransformerConfig
from ..types import CODEBOOKS
from .decoder import Attend, Rope, causal
from .sampling import DrawRows
from .torch_weights import TalkerWeights


class BackboneRunner:
    """The backbone over static key/value buffers, one slot a request: [layers, slots, kv_heads, positions, head_dim].

    The memory of a position is taken when it is first written; what a slot holds of an earlier request is never read.
    """

    def __init__(self, config: TalkerConfig, weights: TalkerWeights, slots: int, max_positions: int) -> None:
        self.weights = weights
        device, dtype = weights.code_table.device, weights.code_table.dtype
        self._rope = Rope.table(config, max_positions).to(device, dtype)
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, max_positions, config.head_dim)
        self._keys = torch.empty(shape, device=device, dtype=dtype)
        self._values = torch.empty(shape, device=device, dtype=dtype)

    @property
    def buffer_bytes(self) -> int:
        """What the key/value buffers take when every position of every slot has been used."""
        return self._keys.nbytes + self._values.nbytes

    def prefill(self, slot: int, inputs: Tensor) -> Tensor:
        """The hidden state after a prompt, [1, 1, hidden]; `inputs` is [1, positions, hidden]."""
        positions = inputs.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, slot, :, :positions] = k[0]
            self._values[layer, slot, :, :positions] = v[0]
            return causal(layer, q, k, v)

        hidden = self.weights.backbone.decode(inputs, self._rope.at(slice(positions)), attend, self.weights.linear)
        return hidden[:, -1:]

    def decode(self, slots: list[int], positions: list[int], inputs: Tensor) -> Tensor:
        """The hidden states of one more position in each of `slots`, [rows, 1, hidden]; `inputs` has the same shape."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            rows: list[Tensor] = []
            for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
                keys[slot, :, position] = k[row, :, 0]
                values[slot, :, position] = v[row, :, 0]
                seen = slice(slot, slot + 1), slice(None), slice(position + 1)
                rows.append(_attention(q[row : row + 1], keys[seen], values[seen]))
            return torch.cat(rows)

        rope = self._rope.at(torch.tensor(positions, device=inputs.device)[:, None])
        return self.weights.backbone.decode(inputs, rope, attend, self.weights.linear)


class FrameRunner:
    """The code predictor: completes frames, each over 16 fresh positions."""

    def __init__(self, config: TransformerConfig, weights: TalkerWeights, slots: int) -> None:
        self.weights = weights
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, CODEBOOKS, config.head_dim)
        self._keys = weights.code_table.new_empty(shape)
        self._values = weights.code_table.new_empty(shape)
        # Position 0 is the hidden state; it is computed together with position 1, code 0.
        self._spans = [slice(0, 2), *(slice(book, book + 1) for book in range(2, CODEBOOKS))]
        self._ropes = [weights.predictor_rope.at(span) for span in self._spans]
        self._attends_of_size: dict[int, list[Attend]] = {}
        # Several threads compute a batch's heads in scratch memory of their own, each aligned differently, and the last
        # bits depend on alignment: there a row's result is only its own when the rows are computed one by one.
        one_by_one = weights.exact and torch.get_num_threads() > 1
        self._attention = _attention_one_by_one if one_by_one else _attention

    def complete(self, hidden: Tensor, first_codes: Tensor, draw: DrawRows, uniform: Tensor) -> Tensor:
        """Whole frames, int64 [rows, 16].

        `hidden` is [rows, 1, talker hidden], `first_codes` int64 [rows], `uniform` float32 [rows, 16].
        """
        weights = self.weights
        codes = [first_codes]
        inputs = torch.cat((weights.project(hidden), self._embed(0, first_codes)), 1)
        attends = self._attends(len(first_codes))
        for book, (rope, attend) in enumerate(zip(self._ropes, attends, strict=True), start=1):
            state = weights.predictor.decode(inputs, rope, attend, weights.linear)[:, -1:]
            codes.append(draw(weights.later_code_logits(book, state), uniform[:, book]))
            inputs = self._embed(book, codes[book])
        return torch.stack(codes, 1)

    def _embed(self, book: int, codes: Tensor) -> Tensor:
        """[rows, 1, predictor hidden]."""
        return F.embedding(codes, self.weights.predictor_tables[book])[:, None]

    def _attends(self, rows: int) -> list[Attend]:
        """Attention in each span, for a batch of this size; made once, since slicing takes longer than copying here."""
        if rows not in self._attends_of_size:
            self._attends_of_size[rows] = [self._attend(span, rows) for span in self._spans]
        return self._attends_of_size[rows]

    def _attend(self, span: slice, rows: int) -> Attend:
        """Attention of the positions in `span`, in the first `rows` of the buffers."""
        keys, values = self._keys[:, :rows, :, : span.stop].unbind(), self._values[:, :rows, :, : span.stop].unbind()
        new_keys, new_values = [key[:, :, span] for key in keys], [value[:, :, span] for value in values]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            new_keys[layer].copy_(k)
            new_values[layer].copy_(v)
            return self._attention(q, keys[layer], values[layer])

        return attend


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of the last positions, causal among themselves when there are several and k and v hold no others."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=q.shape[1] != k.shape[1])


def _attention_one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, one row of the batch after the other."""
    rows = [slice(row, row + 1) for row in range(len(q))]
    return torch.cat([_attention(q[row], k[row], v[row]) for row in rows])
