"""Speech as codes and text as ids on the training device, and batches of teacher-forced Talker sequences out of them.

A sequence, position by position (K is the end of the tag; j counts text ids, f frames):

    role ×3   tag              K+j: text id j + pad      tts_eos + pad   tts_pad + bos   frame 0   frame 1 …
    non-streaming text
    role ×3   tag              text id 0 + bos   frame 0 + text id 1   frame 1 + text id 2 …
    streaming text

In both, text id j stands at position K + j. The position of bos predicts frame 0, the one of frame f predicts frame f
+ 1, the last one eos.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from . import sizes
from .codes import PLAN
from .corpus import read_shard
from .sizes import BOOKS, CODES, FRAME_SAMPLES, TALKER

IGNORED = -100
BUCKETS = (48, 72, 104, 152, 208, 272, 352)
"""Sequence lengths that batches are filled up to: few shapes, so that each can be a captured graph."""
PLANLESS = 0.3
"""Share of the sequences that do not read what earlier frames said of coming phonemes, and so look at the text."""
MOST_OTHER_POSITIONS = 12
"""Role, tag, `tts_eos` and bos, at most; a sequence has as many positions beside text and frames."""
AUTO_TAG = (
    TALKER.codec_nothink_id,
    TALKER.codec_think_bos_id,
    TALKER.codec_think_eos_id,
    sizes.SPEAKER_ID,
    TALKER.codec_pad_id,
)
ENGLISH_TAG = (
    TALKER.codec_think_id,
    TALKER.codec_think_bos_id,
    sizes.ENGLISH,
    TALKER.codec_think_eos_id,
    sizes.SPEAKER_ID,
    TALKER.codec_pad_id,
)


@dataclass(frozen=True)
class Batch:
    """Teacher-forced sequences, [B, L], on the device."""

    text_ids: Tensor  # int64 [B, L]
    code_rows: Tensor  # int64 [B, L, 16], rows of the Talker's code table
    first_codes: Tensor  # int64 [B, L]: code 0 or eos that a position predicts, IGNORED elsewhere
    frames: Tensor  # int64 [B, L, 16]: the frame that a position predicts; meaningless where it predicts none or eos
    spoken: (
        Tensor  # int64 [B, L, 2]: first and end key position of the words spoken in the frame that a position predicts
    )


def spoken_tokens(text: str, offsets: list[tuple[int, int]], words: np.ndarray, frames: int) -> np.ndarray:
    """int16 [frames + 1, 2]: first and end text id of the words that sound in each frame (in a pause: of the next
    word).

    The last row, and frames behind the last word, point at `tts_eos`, which follows the last text id.
    """
    starts = np.asarray([a + (text[a] == " ") for a, _ in offsets])
    ends = np.asarray([b for _, b in offsets])
    first_token = np.searchsorted(ends, words[:, 0], side="right")
    end_token = np.maximum(np.searchsorted(starts, words[:, 1], side="left"), first_token + 1)
    edges = np.arange(frames) * FRAME_SAMPLES
    first_word = np.searchsorted(words[:, 3], edges, side="right")
    last_word = np.maximum(np.searchsorted(words[:, 2], edges + FRAME_SAMPLES, side="left") - 1, first_word)
    out = np.full((frames + 1, 2), (len(offsets), len(offsets) + 1), np.int16)
    inside = first_word < len(words)
    out[:-1][inside, 0] = first_token[first_word[inside]]
    out[:-1][inside, 1] = end_token[np.minimum(last_word[inside], len(words) - 1)]
    return out


@dataclass(frozen=True)
class Prepared:
    """A shard as codes and text ids."""

    frames: np.ndarray  # int32 [U]
    codes: list[np.ndarray]  # U of uint8 [frames, 16]
    text: np.ndarray  # int16 [sum of text counts]
    text_counts: list[int]
    spoken: np.ndarray  # int16 [sum of frames + U, 2], as `spoken_tokens` gives it


def prepare(path: Path, tokenizer: Tokenizer) -> Prepared:
    """Read a shard and tokenise it. Any thread may call."""
    shard = read_shard(path, with_samples=False)
    encodings = tokenizer.encode_batch(shard.texts, add_special_tokens=False)
    ends = np.cumsum(shard.word_counts)
    spans = [
        spoken_tokens(text, encoding.offsets, shard.words[end - count : end], int(frames))
        for text, encoding, end, count, frames in zip(
            shard.texts, encodings, ends, shard.word_counts, shard.frames, strict=True
        )
    ]
    ids = [np.asarray(encoding.ids, np.int16) for encoding in encodings]
    return Prepared(shard.frames, shard.utterances(), np.concatenate(ids), [len(i) for i in ids], np.concatenate(spans))


class Utterances:
    """All utterances, flat arrays on the device. Frame arrays have one row more an utterance, for eos."""

    def __init__(self, frame_capacity: int, device: torch.device) -> None:
        self.device = device
        self.codes = torch.zeros(frame_capacity, BOOKS, dtype=torch.uint8, device=device)
        self.spoken = torch.zeros(frame_capacity, 2, dtype=torch.int16, device=device)
        self.text = torch.zeros(frame_capacity, dtype=torch.int16, device=device)
        self._frame_end, self._text_end = 0, 0
        self._rows = np.zeros((0, 4), np.int64)
        self.table = torch.zeros(0, 4, dtype=torch.int64, device=device)
        self.members: list[np.ndarray] = []
        self.share = np.zeros(0)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, prepared: Prepared) -> None:
        """Append a shard's utterances; left out when they exceed the capacity."""
        count = len(prepared.spoken)
        if self._frame_end + count > len(self.codes):
            return
        place = slice(self._frame_end, self._frame_end + count)
        codes = np.concatenate([np.concatenate((c, c[-1:])) for c in prepared.codes])
        self.codes[place] = torch.from_numpy(codes).to(self.device)
        self.spoken[place] = torch.from_numpy(prepared.spoken).to(self.device)
        self.text[self._text_end : self._text_end + len(prepared.text)] = torch.from_numpy(prepared.text).to(
            self.device
        )
        frames, texts = prepared.frames.astype(np.int64), np.asarray(prepared.text_counts)
        frame_ends, text_ends = self._frame_end + np.cumsum(frames + 1), self._text_end + np.cumsum(texts)
        rows = np.stack((frame_ends - frames - 1, frames, text_ends - texts, texts), 1)
        self._rows = np.concatenate((self._rows, rows))
        self._frame_end, self._text_end = int(frame_ends[-1]), int(text_ends[-1])

    def index(self) -> None:
        """Make what was added available to `draw`."""
        self.table = torch.from_numpy(self._rows).to(self.device)
        length = self._rows[:, 1] + self._rows[:, 3] + MOST_OTHER_POSITIONS
        bucket = np.searchsorted(BUCKETS, length)
        self.members = [np.flatnonzero(bucket == index) for index in range(len(BUCKETS))]
        positions = np.asarray(
            [len(members) * length for members, length in zip(self.members, BUCKETS, strict=True)], np.float64
        )
        self.share = positions / positions.sum()

    def draw(self, positions: int, rng: np.random.Generator) -> tuple[Tensor, int]:
        """(random utterances of like length, a length that holds them), about `positions` positions in all; as many
        for each length always.
        """
        index = int(rng.choice(len(BUCKETS), p=self.share))
        chosen = rng.choice(self.members[index], positions // BUCKETS[index])
        return torch.from_numpy(chosen).to(self.device), BUCKETS[index]

    def batch(self, rows: Tensor, length: int, streaming: bool, english: bool, noise: float) -> Batch:
        """Sequences of the utterances `rows` [B], filled up to `length`.

        Of the codes that the Talker reads (not of those it predicts) a share, up to 2 · `noise` and another one for
        each sequence, is taken from other frames, and in `PLANLESS` of the sequences all that tell of coming phonemes;
        none with `noise` 0.
        """
        frame_start, frames, text_start, texts = self.table[rows].T[:, :, None]
        tag = torch.tensor(ENGLISH_TAG if english else AUTO_TAG, device=self.device)
        key = 3 + len(tag)
        bos = torch.full_like(texts, key) if streaming else key + texts + 1
        position = torch.arange(length, device=self.device)[None]
        j = position - key
        text_ids = torch.where(
            (j >= 0) & (j < texts), self.text[(text_start + j).clamp(0, len(self.text) - 1)].long(), sizes.TTS_PAD
        )
        text_ids = torch.where(j == texts, sizes.TTS_EOS, text_ids)
        text_ids[:, :3] = torch.tensor(self.role, device=self.device)
        text_ids[:, key - 1] = sizes.TTS_BOS
        f = position - bos
        here = (frame_start + f.clamp_min(0)).clamp_max(len(self.codes) - 1)
        target = self.codes[here].long()
        first = torch.where((f >= 0) & (f < frames), target[..., 0], IGNORED)
        first = torch.where(f == frames, TALKER.codec_eos_token_id, first)
        spoken = key + self.spoken[here].long()
        rows_read = self._code_rows(position, bos, frames, frame_start, tag, noise)
        return Batch(text_ids, rows_read, first, target, spoken)

    role: tuple[int, int, int] = (0, 0, 0)
    """The ids of `<|im_start|>assistant` and a new line."""

    def _code_rows(
        self, position: Tensor, bos: Tensor, frames: Tensor, frame_start: Tensor, tag: Tensor, noise: float
    ) -> Tensor:
        """int64 [B, L, 16] rows of the code table: control ids as code 0, whole frames behind bos, the row of zeros
        elsewhere.
        """
        nothing = TALKER.vocab_size + (BOOKS - 1) * CODES
        offsets = torch.tensor(
            [0, *(TALKER.vocab_size + book * CODES for book in range(BOOKS - 1))], device=self.device
        )
        f = position - bos - 1
        codes = self.codes[(frame_start + f.clamp_min(0)).clamp_max(len(self.codes) - 1)].long()
        share = 2 * noise * torch.rand(len(codes), 1, 1, device=self.device)
        other = torch.randint(max(1, self._frame_end), codes.shape, device=self.device)
        wrong = self.codes.gather(0, other.flatten(0, 1)).view_as(codes).long()
        book = torch.arange(BOOKS, device=self.device)
        planless = torch.rand(share.shape, device=self.device) < PLANLESS * (noise > 0)
        replaced = torch.rand(codes.shape, device=self.device) < share
        replaced |= planless & (book >= PLAN.start) & (book < PLAN.stop)
        codes = torch.where(replaced, wrong, codes) + offsets
        rows = torch.where(((f >= 0) & (f < frames))[..., None], codes, nothing)
        key = 3 + len(tag)
        control = torch.where((position >= key) & (position < bos), TALKER.codec_pad_id, nothing)
        control = torch.where(position == bos, TALKER.codec_bos_id, control)
        control[:, 3:key] = tag
        rows[..., 0] = torch.where(f < 0, control, rows[..., 0])
        return rows
