"""Completing frames on a device: from the Talker's hidden states and codes 0 to whole frames and the next inputs.

Everything that differs between requests is a row of small arrays, and noise is keyed by seed, frame and codebook, so that
neither a batch's other rows nor the number of calls so far change a frame. On a GPU the whole computation is one captured
CUDA graph for each batch size; a batch is padded with rows that write to an idle slot.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import CODEBOOKS, NO_CODE, Sampling
from .decoder import DecoderWeights, Rope

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""splitmix64's finaliser: shift, exclusive or, multiply, three times."""
_UNIFORM_BITS = 24


@dataclass(frozen=True)
class FrameWeights:
    """What completing a frame reads, on one device and in one dtype."""

    text_table: Tensor
    """[text_vocab_size, hidden]: text embeddings behind their projection, which depends on nothing but the id."""
    code_table: Tensor
    """[V + 15 · C + 1, hidden]: the code embeddings of all codebooks, behind them a row of zeros for NO_CODE."""
    code_offsets: Tensor
    """Int64 [16]: the row of `code_table` at which each codebook begins."""
    projection: Callable[[Tensor], Tensor]
    """`small_to_mtp_projection`."""
    decoder: DecoderWeights
    heads: Tensor
    """[15, C, predictor hidden]."""
    rope: Rope
    """Angles of the predictor's 16 positions."""

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs [rows, hidden] of ids laid out as a PromptPlan's rows, int32 [rows, 1 + CODEBOOKS]."""
        codes = ids[:, 1:].long()
        table_rows = torch.where(codes == NO_CODE, len(self.code_table) - 1, codes + self.code_offsets)
        terms = F.embedding(table_rows, self.code_table).sum(1, dtype=torch.float32)
        return (terms + self.text_table[ids[:, 0].long()]).to(self.code_table.dtype)


class FrameRows:
    """What each row of a batch is, in host memory. A row that is not filled is greedy and belongs to the idle slot."""

    def __init__(self, count: int, idle_slot: int) -> None:
        self.integers = np.zeros((count, 4), np.int64)
        """[rows, 4]: slot, text id of the next input, noise key, top_k."""
        self.integers[:, 0] = idle_slot
        self.floats = np.zeros((count, 2), np.float32)
        """[rows, 2]: temperature, top_p."""

    def fill(self, row: int, slot: int, frame: int, text_id: int, sampling: Sampling) -> None:
        """Row `row` makes frame number `frame` of the request in `slot`."""
        self.integers[row] = slot, text_id, noise_key(sampling.seed, frame), sampling.subtalker_top_k
        self.floats[row] = sampling.subtalker_temperature, sampling.subtalker_top_p


class FrameCompleter:
    """Runs the code predictor for a batch and keeps each slot's next input. Nothing in it waits for the device."""

    def __init__(self, weights: FrameWeights, slots: int) -> None:
        self.weights = weights
        self.idle_slot = slots
        self.next_inputs = weights.code_table.new_zeros(slots + 1, weights.code_table.shape[1])
        """[slots + 1, hidden]: what the Talker reads next in each slot; the last row is nobody's."""
        self._advance = self._decode
        self._sizes: list[int] = []
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def blank_rows(self, count: int) -> FrameRows:
        """Rows for a batch of `count`, padded to the batch size that will run."""
        return FrameRows(self._sizes[bisect_left(self._sizes, count)] if self._sizes else count, self.idle_slot)

    def complete(self, hidden: Tensor, code0: Tensor, rows: FrameRows) -> Tensor:
        """Frames, int16 [rows, 16], of hidden states [count, hidden] and codes 0 [count], where count ≤ rows.

        Writes each slot's next input. On a GPU the next call overwrites the result.
        """
        integers, floats = torch.from_numpy(rows.integers), torch.from_numpy(rows.floats)
        if not self._sizes:
            return self._run(hidden, code0, integers.to(hidden.device), floats.to(hidden.device))
        count, size = len(hidden), len(integers)
        self._hidden[:count].copy_(hidden)
        self._code0[:count].copy_(code0)
        self._integers[:size].copy_(integers.pin_memory(), non_blocking=True)
        self._floats[:size].copy_(floats.pin_memory(), non_blocking=True)
        self._graphs[size].replay()
        return self._codes[:size]

    @torch.inference_mode()
    def capture(self, sizes: Iterable[int], compiled: bool) -> None:
        """Capture a graph for each batch size, the largest first: the others then fit into its memory pool."""
        self._sizes = sorted(sizes)
        largest, device = self._sizes[-1], self.next_inputs.device
        idle = FrameRows(largest, self.idle_slot)
        self._hidden = self.next_inputs.new_zeros(largest, self.next_inputs.shape[1])
        self._code0 = torch.zeros(largest, dtype=torch.int64, device=device)
        self._integers = torch.from_numpy(idle.integers).to(device)
        self._floats = torch.from_numpy(idle.floats).to(device)
        self._codes = torch.zeros(largest, CODEBOOKS, dtype=torch.int16, device=device)
        if compiled:
            self._advance = torch.compile(self._decode, dynamic=True)
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self._sizes):
            inputs = self._hidden[:size], self._code0[:size], self._integers[:size], self._floats[:size]
            self._run(*inputs)  # compiles and allocates what must not be captured
            self._graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graphs[size], pool=pool):
                self._codes[:size] = self._run(*inputs)

    @torch.inference_mode()
    def _run(self, hidden: Tensor, code0: Tensor, integers: Tensor, floats: Tensor) -> Tensor:
        """Frames, int16 [rows, 16], as a pure function of its arguments but for `next_inputs`."""
        weights = self.weights
        slots, text_ids, keys, top_k = integers.unbind(1)
        temperature, top_p = floats.unbind(1)
        noise = gumbel_noise(keys, CODEBOOKS - 1, weights.heads.shape[1])
        cache = self._new_cache(len(hidden))
        codes = [code0]
        embedding = F.embedding(code0, weights.code_table)
        total = weights.text_table[text_ids].float() + embedding
        inputs = torch.stack((hidden, embedding), 1)
        for book in range(1, CODEBOOKS):
            # The first call takes two positions, the Talker's hidden state and code 0.
            state = self._advance(inputs, cache, book + 1 - inputs.shape[1])
            logits = F.linear(state, weights.heads[book - 1]).float()
            codes.append(draw(logits, noise[:, book - 1], temperature, top_k, top_p))
            embedding = F.embedding(codes[-1] + weights.code_offsets[book], weights.code_table)
            total += embedding
            inputs = embedding[:, None]
        self.next_inputs.index_copy_(0, slots, total.to(self.next_inputs.dtype))
        return torch.stack(codes, 1).to(torch.int16)

    def _decode(self, inputs: Tensor, cache: Tensor, start: int) -> Tensor:
        """The predictor's last hidden state [rows, predictor hidden] of inputs [rows, positions, hidden] from `start` on."""
        stop = start + inputs.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache[layer]
            keys[:, :, start:stop] = k
            values[:, :, start:stop] = v
            return F.scaled_dot_product_attention(
                q, keys[:, :, :stop], values[:, :, :stop], is_causal=start == 0, enable_gqa=q.shape[1] != k.shape[1]
            )

        projected = self.weights.projection(inputs)
        return self.weights.decoder.decode(projected, self.weights.rope.at(slice(start, stop)), attend)[:, -1]

    def _new_cache(self, rows: int) -> Tensor:
        """Keys and values of one frame, [layers, 2, rows, kv_heads, 16, head_dim]."""
        layer = self.weights.decoder.layers[0]
        qk_heads, head_dim = layer.qk_norm.shape
        kv_heads = qk_heads - layer.output.shape[1] // head_dim
        shape = (len(self.weights.decoder.layers), 2, rows, kv_heads, CODEBOOKS, head_dim)
        return self.next_inputs.new_empty(shape)


def draw(logits: Tensor, noise: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """One code a row, int64 [rows], from logits and Gumbel noise, both float32 [rows, codes].

    The parameters are [rows]; temperature 0 is greedy, top_k 0 and top_p 1 cut nothing.
    """
    greedy = (temperature == 0)[:, None]
    scaled, order = (logits / torch.where(greedy, 1.0, temperature[:, None])).sort(descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    scaled = scaled.masked_fill((rank >= top_k[:, None]) & (top_k > 0)[:, None], float("-inf"))
    probabilities = scaled.softmax(-1)
    likelier = probabilities.cumsum(-1) - probabilities
    scaled = scaled.masked_fill((likelier >= top_p[:, None]) & (rank > 0), float("-inf"))
    best = torch.where(greedy, scaled, scaled + noise.gather(1, order)).argmax(-1, keepdim=True)
    return order.gather(1, best)[:, 0]


def noise_key(seed: int, frame: int) -> int:
    """A signed 64-bit key of a frame of a request."""
    return _signed(_mix(_mix(seed & _WORD) + frame & _WORD))


def gumbel_noise(keys: Tensor, books: int, entries: int) -> Tensor:
    """Gumbel noise, float32 [rows, books, entries]: of each key, int64 [rows], the first numbers of a splitmix64 stream."""
    counter = torch.arange(1, books * entries + 1, device=keys.device)
    words = keys[:, None] + counter * _signed(_GOLDEN)
    for shift, multiplier in _ROUNDS:
        words = (words ^ ((words >> shift) & (_WORD >> shift))) * _signed(multiplier)
    uniform = ((words >> (64 - _UNIFORM_BITS)) & ((1 << _UNIFORM_BITS) - 1)).float() + 0.5
    return -(-(uniform * 2.0**-_UNIFORM_BITS).log()).log().view(len(keys), books, entries)


def _mix(word: int) -> int:
    for shift, multiplier in _ROUNDS:
        word = (word ^ (word >> shift)) * multiplier & _WORD
    return word


def _signed(word: int) -> int:
    """The two's complement reading of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
