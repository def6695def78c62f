"""Making frames on a device: from the Talker's hidden states to whole frames and the next inputs.

Everything that differs between requests is a row of small arrays, and noise is keyed by seed, frame and codebook, so
that neither a batch's other rows nor the number of calls so far change a frame. On a GPU the whole computation is one
captured CUDA graph for each batch size; a batch is padded with rows that write to an idle slot.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import TalkerConfig
from ..types import CODEBOOKS, NO_CODE, Sampling
from .decoder import DecoderWeights, Rope
from .model import CodePredictor, TextProjection, code_offsets
from .sampling import Draw, drawable_ids, penalise

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""splitmix64's finaliser: shift, exclusive or, multiply, three times."""
_UNIFORM_BITS = 24
_INTEGERS, _FLOATS = 7, 5
"""Of what a row is told, beside its noise."""
WORDS = _INTEGERS + _FLOATS + CODEBOOKS
"""That a row is told."""
_HEAD_ROWS = 8
"""A multiple of so many rows of the codec head are multiplied."""
_TABLE_ROWS = 8192
"""Rows of the text table that are computed at once."""


@dataclass(frozen=True)
class FrameWeights:
    """What making a frame reads, on one device and in one dtype."""

    head: Tensor
    """[at least ids, hidden]: the codec head's rows of what a frame may begin with, codes in their order and last eos;
    behind them zeros, as GPUs are faster with a multiple of 8 rows.
    """
    ids: int
    """How many ids a frame may begin with."""
    eos_id: int
    text_table: Tensor
    """[text_vocab_size, hidden]: text embeddings behind their projection, which depends on nothing but the id."""
    code_table: Tensor
    """[V + 15 · C + 1, hidden]: the code embeddings of all codebooks, behind them a row of zeros for NO_CODE."""
    code_offsets: Tensor
    """Int64 [16]: the row of the code tables at which each codebook begins."""
    projection: nn.Module
    """`small_to_mtp_projection`, hidden → predictor hidden."""
    predictor_table: Tensor
    """[V + 15 · C + 1, predictor hidden]: `code_table` behind the projection."""
    decoder: DecoderWeights
    heads: Tensor
    """[15, C, predictor hidden]."""
    rope: Rope
    """Angles of the predictor's 16 positions."""

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        config: TalkerConfig,
        codec_head: Tensor,
        codec_embedding: Tensor,
        text_embedding: Tensor,
        text_projection: TextProjection,
        predictor: CodePredictor,
    ) -> "FrameWeights":
        """From a Talker's parts; `codec_head` and `codec_embedding` are [V, hidden], `text_embedding` [text_vocab_size,
        text hidden].
        """
        books = predictor.embedding_tables().flatten(0, 1)
        code_table = torch.cat((codec_embedding, books, books.new_zeros(1, books.shape[1])))
        head = codec_head[drawable_ids(config).to(books.device)]
        return cls(
            head=F.pad(head, (0, 0, 0, -len(head) % _HEAD_ROWS)),
            ids=len(head),
            eos_id=config.codec_eos_token_id,
            text_table=torch.cat([text_projection(rows) for rows in torch.split(text_embedding, _TABLE_ROWS)]),
            code_table=code_table,
            code_offsets=code_offsets(config).to(books.device),
            projection=predictor.small_to_mtp_projection,
            predictor_table=predictor.small_to_mtp_projection(code_table),
            decoder=predictor.model.weights(),
            heads=predictor.head_weights(),
            rope=Rope.table(config.code_predictor_config, CODEBOOKS).to(books.device, books.dtype),
        )

    def embed(self, text_ids: Tensor, codes: Tensor) -> Tensor:
        """Inputs [rows, hidden] of text ids [rows] and codes [rows, 16], NO_CODE where there is none."""
        table_rows = torch.where(codes == NO_CODE, len(self.code_table) - 1, codes + self.code_offsets)
        terms = F.embedding(table_rows, self.code_table).sum(1, dtype=torch.float32)
        return (terms + F.embedding(text_ids, self.text_table)).to(self.code_table.dtype)

    def new_cache(self, rows: int) -> Tensor:
        """Keys and values of `rows` frames in each layer, [layers, 2, rows, kv_heads, 16, head_dim]."""
        layers = self.decoder.layers
        qk_heads, head_dim = layers[0].qk_norm.shape
        kv_heads = qk_heads - layers[0].output.shape[1] // head_dim
        return self.heads.new_empty(len(layers), 2, rows, kv_heads, CODEBOOKS, head_dim)


@dataclass(frozen=True)
class NewFrames:
    """The frames that a batch makes, as arrays of one length. Rows that make none need not be named."""

    rows: npt.NDArray[np.int64]
    """Which rows of the batch."""
    slots: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    """Each frame's number in its request, from 0."""
    text_ids: npt.NDArray[np.int64]
    """The text terms of the next inputs."""


@dataclass(frozen=True)
class Rows:
    """What each row of a batch is told, parts of one tensor. All but noise and cuts are [rows], integers are int32."""

    words: Tensor
    """Int32 [rows, WORDS], floats as their bits: the others in their order."""
    slots: Tensor
    text_ids: Tensor
    first_top_k: Tensor
    top_k: Tensor
    may_end: Tensor
    is_first: Tensor
    """Whether it is a request's first frame."""
    makes_one: Tensor
    """Whether it makes a frame."""
    penalty: Tensor
    """For code 0 that the request has had."""
    first_cut: Tensor
    """[rows, 2]: temperature and top_p of code 0."""
    cut: Tensor
    """[rows, 2]: those of the later codes."""
    noise: Tensor
    """[rows, 16]: a number in [0, 1) for each codebook."""

    @classmethod
    def of(cls, words: Tensor) -> "Rows":
        """Of the words."""
        slots, text_ids, first_top_k, top_k, may_end, is_first, makes_one = words[:, :_INTEGERS].unbind(1)
        floats = words[:, _INTEGERS:].view(torch.float32)
        penalty, first_cut, cut, noise = torch.split(floats, [1, 2, 2, CODEBOOKS], 1)
        integers = slots, text_ids, first_top_k, top_k, may_end, is_first, makes_one
        return cls(words, *integers, penalty[:, 0], first_cut, cut, noise)


@dataclass(frozen=True)
class MadeFrames:
    """What a step has made, on the device. On a GPU the next step overwrites it."""

    codes: Tensor
    """Int16 [at least rows, 16]. Of a row that begins with eos the rest means nothing."""
    begun: Tensor
    """Int64 [2, at least rows]: the id that each row's frame begins with, a code or eos; whether it makes a frame."""


class FrameMaker:
    """Draws whole frames for a batch, and keeps what each slot's next frame needs. It never waits for the device."""

    def __init__(self, predictor: "PlainPredictor", slots: int) -> None:
        self.weights = weights = predictor.weights
        self.slot_inputs = weights.code_table.new_zeros(slots + 1, weights.code_table.shape[1])
        """[slots + 1, hidden]: what the Talker reads next in each slot; the last row is nobody's."""
        self._seen = torch.zeros(slots + 1, weights.ids, dtype=torch.bool, device=weights.head.device)
        """Which codes 0 each slot's request has had."""
        self._predictor = predictor
        self._seeds = np.zeros(slots, np.uint64)
        self._min_frames = np.zeros(slots, np.int64)
        self._top_k = np.zeros((slots, 2), np.int32)
        self._draws = np.zeros((slots, 5), np.float32)
        self._sizes: list[int] = []
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._made: dict[int, MadeFrames] = {}
        """What each graph leaves its frames in."""

    def enter(self, slot: int, sampling: Sampling, codes0: Sequence[int] = ()) -> None:
        """From now on a slot's frames are drawn so. `codes0`: what the frames of its request began with so far."""
        first, later = Draw.first_code(sampling), Draw.later_codes(sampling)
        self._seeds[slot] = sampling.seed % 2**64
        self._min_frames[slot] = sampling.min_new_frames
        self._top_k[slot] = first.top_k, later.top_k
        self._draws[slot] = sampling.repetition_penalty, first.temperature, first.top_p, later.temperature, later.top_p
        if codes0:
            self._seen[slot] = torch.bincount(torch.tensor(codes0), minlength=self._seen.shape[1]).bool()

    @torch.inference_mode()
    def make(self, hidden: Tensor, frames: NewFrames) -> MadeFrames:
        """The frames of hidden states [rows, hidden]. Writes the next inputs of the slots named."""
        count = len(hidden)
        if not self._sizes:
            return self._run(hidden, self._words(count, frames).to(hidden.device))
        size = self._sizes[bisect_left(self._sizes, count)]
        self._hidden[:count].copy_(hidden)
        self._device_words[:size].copy_(self._words(size, frames).pin_memory(), non_blocking=True)
        self._graphs[size].replay()
        return self._made[size]

    @torch.inference_mode()
    def capture(self, sizes: Iterable[int]) -> None:
        """Capture a graph for each batch size, the largest first: the others then fit into its memory pool."""
        self._sizes = sorted(sizes)
        largest, device = self._sizes[-1], self.slot_inputs.device
        nobody = np.zeros(0, np.int64)
        self._hidden = self.slot_inputs.new_zeros(largest, self.slot_inputs.shape[1])
        self._device_words = self._words(largest, NewFrames(nobody, nobody, nobody, nobody)).to(device)
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self._sizes):
            inputs = self._hidden[:size], self._device_words[:size]
            self._run(*inputs)  # compiles kernels, which must not be captured
            self._graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graphs[size], pool=pool):
                self._made[size] = self._run(*inputs)

    def _words(self, count: int, frames: NewFrames) -> Tensor:
        """What `Rows` are made of, for `count` rows, one transfer. Rows not named are greedy and nobody's."""
        words = np.zeros((count, WORDS), np.int32)
        floats = words[:, _INTEGERS:].view(np.float32)
        words[:, 0], floats[:, 0] = len(self._seeds), 1.0
        words[frames.rows, 0] = frames.slots
        words[frames.rows, 1] = frames.text_ids
        words[frames.rows, 2:4] = self._top_k[frames.slots]
        words[frames.rows, 4] = frames.numbers >= self._min_frames[frames.slots]
        words[frames.rows, 5] = frames.numbers == 0
        words[frames.rows, 6] = 1
        floats[frames.rows, :_FLOATS] = self._draws[frames.slots]
        floats[frames.rows, _FLOATS:] = frame_noise(self._seeds[frames.slots], frames.numbers.astype(np.uint64))
        return torch.from_numpy(words)

    def _run(self, hidden: Tensor, words: Tensor) -> MadeFrames:
        """A pure function of its arguments but for what it keeps of each slot."""
        weights, rows = self.weights, Rows.of(words)
        codes = self._predictor.draw(F.linear(hidden, weights.head), weights.projection(hidden), rows, self._seen)
        return self._predictor.finish(codes, rows, self.slot_inputs)


class PlainPredictor:
    """The arithmetic of frames in PyTorch, on any device; `kernels` puts GPU kernels in the place of these methods."""

    def __init__(self, weights: FrameWeights) -> None:
        self.weights = weights

    def draw(self, first_logits: Tensor, start: Tensor, rows: Rows, seen: Tensor) -> Tensor:
        """Codes, int64 [rows, 16], of logits of code 0, [rows, at least ids], and the Talker's projected hidden
        states `start`, [rows, predictor hidden].

        `seen` is bool [slots, ids]: which codes 0 each slot's request has had; these are added.
        """
        codes = torch.empty(len(start), CODEBOOKS, dtype=torch.int64, device=start.device)
        codes[:, 0] = self._draw_first(first_logits, rows, seen)
        cache = self.weights.new_cache(len(start))
        # The first pass takes two positions, the Talker's hidden state and code 0.
        inputs = torch.cat((start[:, None], self.embed(codes, 0)), 1)
        for book in range(1, CODEBOOKS):
            codes[:, book] = _draw(self.logits(inputs, cache, book), rows.noise[:, book], rows.cut, rows.top_k)
            inputs = self.embed(codes, book)
        return codes

    def _draw_first(self, logits: Tensor, rows: Rows, seen: Tensor) -> Tensor:
        slots = rows.slots.long()
        had = seen.index_select(0, slots) & (rows.is_first == 0)[:, None]
        logits = penalise(logits[:, : self.weights.ids].float(), had, rows.penalty[:, None])
        logits[:, -1].masked_fill_(rows.may_end == 0, -torch.inf)
        codes = _draw(logits, rows.noise[:, 0], rows.first_cut, rows.first_top_k)
        seen.index_copy_(0, slots, had.scatter(1, codes[:, None], True))
        return codes

    def embed(self, codes: Tensor, book: int) -> Tensor:
        """The inputs [rows, 1, predictor hidden] that codes of a book, of int64 [rows, 16], become."""
        return F.embedding(codes[:, book] + self.weights.code_offsets[book], self.weights.predictor_table)[:, None]

    def logits(self, inputs: Tensor, cache: Tensor, book: int) -> Tensor:
        """Of the codes of a codebook, float32 [rows, C].

        Inputs are the predictor's, [rows, positions, predictor hidden]; the last one stands at position `book`. Keys
        and values of the positions before the first are in `cache`; theirs are written to it.
        """
        weights, stop = self.weights, book + 1
        start = stop - inputs.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache[layer]
            keys[:, :, start:stop] = k
            values[:, :, start:stop] = v
            grouped = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(
                q, keys[:, :, :stop], values[:, :, :stop], is_causal=q.shape[2] > 1, enable_gqa=grouped
            )

        states = weights.decoder.decode(inputs, weights.rope.at(slice(start, stop)), attend)
        return F.linear(states[:, -1], weights.heads[book - 1]).float()

    def finish(self, codes: Tensor, rows: Rows, slot_inputs: Tensor) -> MadeFrames:
        """The codes' embeddings and text terms become the next inputs of the rows' slots."""
        weights = self.weights
        slot_inputs.index_copy_(0, rows.slots.long(), weights.embed(rows.text_ids, codes))
        begun = torch.where(codes[:, 0] == weights.ids - 1, weights.eos_id, codes[:, 0])
        return MadeFrames(codes.to(torch.int16), torch.stack((begun, rows.makes_one.long())))


def _draw(logits: Tensor, uniform: Tensor, cut: Tensor, top_k: Tensor) -> Tensor:
    return draw_codes(logits, uniform, cut[:, 0], top_k, cut[:, 1])


def draw_codes(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """One code a row, int64 [rows], of logits, float32 [rows, codes]; the other arguments are [rows].

    Temperature 0 takes the likeliest code; top_k 0 and top_p 1 cut nothing, and codes as likely as the last kept stay.
    """
    codes = logits.shape[1]
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    descending = scaled.sort(descending=True).values
    least = descending.gather(1, torch.where(top_k > 0, top_k, codes).clamp(max=codes).long()[:, None] - 1)
    share = (scaled - descending[:, :1]).exp().masked_fill(scaled < least, 0.0)
    sorted_share = (descending - descending[:, :1]).exp().masked_fill(descending < least, 0.0)
    goal = torch.where(top_p < 1, top_p, torch.inf)[:, None] * share.sum(-1, keepdim=True)
    before = (sorted_share.cumsum(-1) < goal).sum(-1, keepdim=True).clamp(max=codes - 1)
    share = share.masked_fill(scaled < descending.gather(1, before), 0.0)
    cumulated = share.cumsum(-1)
    index = torch.arange(codes, device=logits.device)
    last = torch.where(share > 0, index, 0).amax(-1, keepdim=True)
    passed = (share > 0) & (cumulated > uniform[:, None] * cumulated[:, -1:])
    return torch.where(greedy, logits.argmax(-1), torch.where(passed, index, last).amin(-1))


def frame_noise(seeds: npt.NDArray[np.uint64], frames: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """The start of a splitmix64 stream in [0, 1), float32 [rows, 16], for each seed and frame number, uint64 [rows]."""
    keys = _mix(_mix(seeds) + frames)
    words = _mix(keys[:, None] + np.arange(CODEBOOKS, dtype=np.uint64) * _GOLDEN)
    return (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float32) * np.float32(2.0**-_UNIFORM_BITS)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, multiplier in _ROUNDS:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(multiplier)
    return words
