"""Reads the teacher's shards, as they appear, onto the training device."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .codes import PHASES, coded_hz
from .sizes import BOOKS, CODES, FRAME_SAMPLES


@dataclass(frozen=True)
class Shard:
    """`words` rows are (first character, end character, first sample, end sample); `frames` and `word_counts` say
    whose is what. Only a teacher's first shards keep their samples: a Talker needs none.
    """

    texts: list[str]
    frames: np.ndarray  # int32 [U]
    word_counts: np.ndarray  # int32 [U]
    codes: np.ndarray  # uint8 [sum of frames, 16]
    words: np.ndarray  # int32 [sum of word counts, 4]
    samples: np.ndarray  # int16 [sum of frames · 1920], or [0]

    def utterances(self) -> list[np.ndarray]:
        """The codes of each utterance, uint8 [frames, 16]."""
        return np.split(self.codes, np.cumsum(self.frames)[:-1])


def read_shard(path: Path, with_samples: bool = True) -> Shard:
    """A shard as `teacher.write_shard` wrote it."""
    with np.load(path) as z:
        texts = [str(text) for text in z["texts"]]
        samples = z["samples"] if with_samples else np.zeros(0, np.int16)
        return Shard(texts, z["frames"], z["word_counts"], z["codes"], z["words"], samples)


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
        """Append a shard, unless the capacity is full or the shard holds no samples any more."""
        count = len(shard.codes)
        if self.frames + count > len(self.samples) or not len(shard.samples):
            self.full = True
            return
        place = slice(self.frames, self.frames + count)
        self.samples[place] = torch.from_numpy(shard.samples).view(count, FRAME_SAMPLES).to(self.samples.device)
        self.codes[place] = torch.from_numpy(shard.codes).to(self.samples.device)
        self.frames += count
        self.count.fill_(self.frames)

    def crops(self, batch: int, frames: int) -> tuple[Tensor, Tensor]:
        """(float32 samples [B, frames · 1920], int64 codes [B, frames, 16]) at random frames."""
        start = (torch.rand(batch, 1, device=self.samples.device, dtype=torch.float64) * (self.count - frames)).long()
        rows = start + torch.arange(frames, device=start.device)
        return self.samples[rows].flatten(1).float() / 32768, self.codes[rows].long()


def voicing_rows(width: int) -> list[Tensor]:
    """Rows of about unit variance, each [128, width], to begin the embeddings of the pitch and cycle books with.

    Near for near codes; a pitch also tells how far it turns the cycle in 10 to 40 ms.
    """
    hertz = torch.from_numpy(coded_hz(np.arange(1, CODES))).float()[:, None]
    octaves = torch.linspace(0, 1, CODES - 1)[:, None]
    turns = torch.tensor([0.01, 0.02, 0.03, 0.04])
    pitch = torch.cat((2 * math.pi * hertz * turns, math.pi * octaves * torch.tensor([1, 2, 4, 8])), 1)
    cycle = 2 * math.pi / PHASES * torch.arange(CODES - 1)[:, None] * torch.tensor([1, 1, 1, 1, 2, 2, 3, 4])
    rows = []
    for angles in (pitch, pitch, cycle, cycle, cycle, cycle):
        waves = torch.cat((angles.cos(), angles.sin()), 1) @ torch.randn(16, width) / math.sqrt(8)
        rows.append(torch.cat((torch.randn(1, width), waves)))
    return rows
