"""Reads the teacher's shards, as they appear, onto the training device."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .codes import STEPS, encode
from .sizes import BOOKS, FRAME_SAMPLES


@dataclass(frozen=True)
class Shard:
    """`words` rows are (first character, end character, first sample, end sample); `frames` and `word_counts` say
    whose is what.
    """

    texts: list[str]
    frames: np.ndarray  # int32 [U]
    samples: np.ndarray  # int16 [sum of frames · 1920]
    phonemes: np.ndarray  # uint8 [sum of frames · 4], the teacher's ids
    pitch_hz: np.ndarray  # float16 [sum of frames · 4], 0 unvoiced
    word_counts: np.ndarray  # int32 [U]
    words: np.ndarray  # int32 [sum of word counts, 4]

    def codes(self) -> list[np.ndarray]:
        """uint8 [frames, 16] of each utterance."""
        ends = np.cumsum(self.frames)
        return [
            encode(
                self.phonemes[start * STEPS : end * STEPS],
                self.pitch_hz[start * STEPS : end * STEPS],
                self.samples[start * FRAME_SAMPLES : end * FRAME_SAMPLES],
            )
            for start, end in zip(ends - self.frames, ends, strict=True)
        ]


def read_shard(path: Path) -> Shard:
    """A shard as `teacher.write_shard` wrote it."""
    with np.load(path) as z:
        texts = [str(text) for text in z["texts"]]
        return Shard(texts, z["frames"], z["samples"], z["phonemes"], z["pitch_hz"], z["word_counts"], z["words"])


class ShardQueue:
    """The shards of a folder, each once, in the order of their names as far as they are there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, set[Path]()

    def fresh_paths(self, limit: int) -> list[Path]:
        """The files of at most `limit` shards that were not handed out before."""
        paths = [p for p in sorted(self._folder.glob("?????-??.npz")) if p not in self._seen][:limit]
        self._seen.update(paths)
        return paths

    def fresh(self, limit: int) -> list[Shard]:
        """At most `limit` shards that were not handed out before."""
        return [read_shard(path) for path in self.fresh_paths(limit)]

    def wait(self, count: int, deadline: float) -> list[Shard]:
        """`count` shards, waiting for the teacher to write them; TimeoutError after `deadline` (time.time())."""
        out: list[Shard] = []
        while len(out) < count:
            if time.time() > deadline:
                raise TimeoutError(f"{self._folder}: {len(out)} of {count} shards")
            out += self.fresh(count - len(out))
            time.sleep(0.2)
        return out


class Speech:
    """All speech end to end on the device, for random crops. `capacity` in frames."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.samples = torch.zeros(capacity, FRAME_SAMPLES, dtype=torch.int16, device=device)
        self.codes = torch.zeros(capacity, BOOKS, dtype=torch.uint8, device=device)
        self.frames, self.full = 0, False
        self.count = torch.zeros((), device=device)

    def add(self, shard: Shard) -> None:
        """Append a shard, unless the capacity is full."""
        count = int(shard.frames.sum())
        if self.frames + count > len(self.samples):
            self.full = True
            return
        place = slice(self.frames, self.frames + count)
        self.samples[place] = torch.from_numpy(shard.samples).view(count, FRAME_SAMPLES).to(self.samples.device)
        self.codes[place] = torch.from_numpy(np.concatenate(shard.codes())).to(self.samples.device)
        self.frames += count
        self.count.fill_(self.frames)

    def crops(self, batch: int, frames: int) -> tuple[Tensor, Tensor]:
        """(float32 samples [B, frames · 1920], int64 codes [B, frames, 16]) at random frames."""
        start = (torch.rand(batch, 1, device=self.samples.device, dtype=torch.float64) * (self.count - frames)).long()
        rows = start + torch.arange(frames, device=start.device)
        return self.samples[rows].flatten(1).float() / 32768, self.codes[rows].long()
