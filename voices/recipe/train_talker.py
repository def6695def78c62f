"""Trains the Talker on the codes of the teacher's speech, with the word times as a guide for two attention heads.

    python -m recipe.train_talker --shards DIR --tokenizer DIR --out DIR --seconds 560 [--resume FILE]

Times count from the start of the run.
"""

import argparse
import functools
import math
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from duotone.stages.talker.decoder import Rope, causal
from duotone.stages.talker.model import Talker, code_offsets

from . import tokenizer as bpe
from .codes import CYCLES, VOICING
from .corpus import ShardQueue, voicing_rows
from .graphs import CapturedStep
from .prompts import BUCKETS, IGNORED, Batch, Prepared, Utterances, prepare
from .sizes import BOOKS, TALKER

GUIDED = ((1, 0), (2, 0))
"""(layer, head) pairs that learn to look at the words being spoken."""
BOOK_WEIGHTS = (2.0,) * 7 + (0.3,) * 2 + (0.4,) * 4 + (0.1,) * 2
"""Of books 1 … 15: words before melody, and melody before loudness; cycles, if wrong, are roughness."""
WORD_BOOKS = 7
"""Books behind book 0 that say phonemes and how long the last one goes on."""
CYCLE_BOOKS = slice(CYCLES.start - 1, CYCLES.stop - 1)
MAX_POSITIONS = 512
READERS = 3
FILL_SECONDS = 5
"""How long to read shards, before the first step, that the teacher wrote earlier."""


class GuidedAttention:
    """Causal attention that also keeps what the guided heads looked for: an `Attend`."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for guided, head in GUIDED:
            if guided == layer:
                self.seen.append((q[:, head], k[:, head * k.shape[1] // q.shape[1]]))
        return causal(layer, q, k, v)

    def loss(self, batch: Batch) -> Tensor:
        """Mean negative log of the attention that falls on the words spoken, over positions that predict a frame or
        eos.
        """
        position = torch.arange(batch.text_ids.shape[1], device=batch.text_ids.device)
        future = position > position[:, None]
        wanted = (position >= batch.spoken[..., :1]) & (position < batch.spoken[..., 1:]) & ~future
        counted = (batch.first_codes != IGNORED) & wanted.any(-1)
        total = batch.spoken.new_zeros((), dtype=torch.float32)
        for query, key in self.seen:
            score = (query.float() @ key.float().transpose(1, 2)) / query.shape[-1] ** 0.5
            score = score.masked_fill(future, -math.inf)
            missed = score.logsumexp(-1) - score.masked_fill(~wanted, -1e4).logsumexp(-1)
            total = total + (missed * counted).sum() / counted.sum().clamp_min(1)
        return total / len(self.seen)


def initialise(talker: Talker) -> None:
    """Smaller embeddings and branch outputs than torch's own, for a short training at a high rate."""
    for name, parameter in talker.named_parameters():
        if "codec_embedding" in name:
            nn.init.normal_(parameter, std=0.06)
        elif name.endswith("text_embedding.weight"):
            nn.init.normal_(parameter, std=0.5)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.mul_(0.4)
    with torch.no_grad():
        for book, rows in zip(VOICING, voicing_rows(TALKER.hidden_size), strict=True):
            talker.code_predictor.model.codec_embedding[book - 1].weight.copy_(0.06 * rows)


class TalkerTrainer:
    """One step after another; the learning rate depends on the clock."""

    def __init__(
        self, talker: Talker, device: torch.device, seconds: float, learning_rate: float, predictor_share: float
    ) -> None:
        self.talker, self.device, self.seconds, self.learning_rate, self.share = (
            talker,
            device,
            seconds,
            learning_rate,
            predictor_share,
        )
        self.rope = Rope.table(TALKER, MAX_POSITIONS).to(device, torch.float32)
        self.frame_rope = Rope.table(TALKER.code_predictor_config, BOOKS).to(device, torch.float32)
        self.offsets = code_offsets(TALKER).to(device)
        self.book_weights = torch.tensor(BOOK_WEIGHTS, device=device)
        self.learning = list(talker.parameters())
        matrices = [p for p in self.learning if p.ndim > 1]
        others = [p for p in self.learning if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
        self.rate = torch.tensor(learning_rate, device=device)
        self.optimiser = torch.optim.AdamW(
            groups, lr=self.rate, betas=(0.9, 0.97), fused=True, capturable=device.type == "cuda"
        )
        self.steps = 0
        self._captured: dict[int, tuple[Batch, CapturedStep]] = {}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropies of code 0 (with eos) and of the other codes, the guided heads' loss, and their sum."""
        attend = GuidedAttention()
        table = self.talker.code_table()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            codes = F.embedding_bag(batch.code_rows.flatten(0, 1), table, mode="sum", padding_idx=len(table) - 1).view(
                *batch.text_ids.shape, -1
            )
            inputs = self.talker.embed_text(batch.text_ids).float() + codes
            hidden, logits = self.talker(inputs, self.rope.at(slice(0, inputs.shape[1])), attend)
        first = F.cross_entropy(logits.float().flatten(0, 1), batch.first_codes.flatten(), ignore_index=IGNORED)
        guide = attend.loss(batch)
        predicting = (batch.first_codes != IGNORED) & (batch.first_codes != TALKER.codec_eos_token_id)
        chance = torch.rand(predicting.shape, device=self.device) * predicting
        count = int(self.share * predicting.numel())  # a fixed number keeps the shapes fixed
        chosen = chance.flatten().topk(count, sorted=False)
        rest = self._rest(
            hidden.flatten(0, 1)[chosen.indices], batch.frames.flatten(0, 1)[chosen.indices], chosen.values > 0, table
        )
        return {
            "first": first,
            "words": rest[:WORD_BOOKS].mean(),
            "pitch": rest[WORD_BOOKS : CYCLE_BOOKS.start].mean(),
            "cycles": rest[CYCLE_BOOKS].mean(),
            "level": rest[CYCLE_BOOKS.stop :].mean(),
            "guide": guide,
            "total": 2 * first + (self.book_weights * rest).sum() + 0.2 * guide,
        }

    def _rest(self, hidden: Tensor, frames: Tensor, counted: Tensor, table: Tensor) -> Tensor:
        """Mean cross-entropy of each of books 1 … 15, [15], over the frames [N, 16] that are `counted`."""
        read = F.embedding(frames[:, :-1] + self.offsets[:-1], table)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.talker.code_predictor(torch.cat((hidden[:, None].float(), read), 1), self.frame_rope)
        wanted = torch.where(counted[:, None], frames[:, 1:], IGNORED)
        losses = F.cross_entropy(logits.float().transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
        return losses.sum(0) / counted.sum().clamp_min(1)

    def step(self, batch: Batch, elapsed: float) -> dict[str, Tensor]:
        """One update; returns the losses, on the device."""
        progress = min(1.0, elapsed / self.seconds)
        rate = min(1.0, (self.steps + 1) / 150) * max(0.01, 0.5 + 0.5 * math.cos(math.pi * progress))
        self.rate.fill_(self.learning_rate * rate)
        length = batch.text_ids.shape[1]
        if length not in self._captured:
            still = Batch(**{field.name: getattr(batch, field.name).clone() for field in fields(batch)})
            self._captured[length] = still, CapturedStep(functools.partial(self._update, still), self.device)
        still, update = self._captured[length]
        for field in fields(batch):
            getattr(still, field.name).copy_(getattr(batch, field.name))
        self.steps += 1
        return update()

    def _update(self, batch: Batch) -> dict[str, Tensor]:
        losses = self.losses(batch)
        self.optimiser.zero_grad(set_to_none=True)
        losses["total"].backward()
        losses["norm"] = nn.utils.clip_grad_norm_(self.learning, 1.0)
        self.optimiser.step()
        return {name: loss.detach() for name, loss in losses.items()}


def save(talker: Talker, out: Path) -> None:
    """`talker.safetensors`, bf16, published names; whole or not at all."""
    partial = out / ".talker.partial"
    save_file(
        {f"talker.{k}": v.detach().bfloat16().contiguous().cpu() for k, v in talker.state_dict().items()}, partial
    )
    partial.rename(out / "talker.safetensors")


class Feed:
    """Turns shards into utterances between training steps; the first shard is held out. Threads read and tokenise
    ahead.
    """

    def __init__(
        self, queue: ShardQueue, whole: Tokenizer, cut: Tokenizer, capacity: int, device: torch.device
    ) -> None:
        self._queue, self._tokenizers = queue, (whole, cut)
        self.training, self.held_out = Utterances(capacity, device), Utterances(20_000, device)
        self.training.role = self.held_out.role = tuple(whole.encode("<|im_start|>assistant\n").ids)
        self._pool = ThreadPoolExecutor(READERS)
        self._pending: deque[Future[Prepared]] = deque()
        self._count = 0

    def take(self, limit: int) -> None:
        """Add at most `limit` shards that are ready. Every seventh is tokenised with merges left out at random."""
        for path in (
            self._queue.fresh_paths(8 * READERS - len(self._pending)) if len(self._pending) < 4 * READERS else ()
        ):
            self._pending.append(self._pool.submit(prepare, path, self._tokenizers[self._count % 7 == 6]))
            self._count += 1
        for _ in range(limit):
            if not self._pending or not self._pending[0].done():
                break
            prepared = self._pending.popleft().result()
            target = self.training if len(self.held_out) else self.held_out
            target.add(prepared)
        if len(self.training):
            self.training.index()
        if len(self.held_out):
            self.held_out.index()


@torch.no_grad()
def validate(trainer: TalkerTrainer, held_out: Utterances) -> str:
    """Losses on the held-out utterances, non-streaming text."""
    batch = held_out.batch(
        torch.arange(len(held_out), device=trainer.device), BUCKETS[-1], streaming=False, english=True, noise=0.0
    )
    return " ".join(f"{name} {value.item():.3f}" for name, value in trainer.losses(batch).items())


def train(
    trainer: TalkerTrainer, feed: Feed, out: Path, positions: int, noise: float, started: float, report_seconds: float
) -> None:
    """Train until the trainer's time is over; `started` (time.time()) is when its clock began."""
    rng = np.random.default_rng(1)
    reported = 0.0
    begin = time.time() + FILL_SECONDS
    while len(feed.training) < 256 or time.time() < begin:
        feed.take(8)
        if time.time() - started > trainer.seconds:
            return
    print(f"{time.time() - started:.0f} s: {len(feed.training)} utterances to begin with", flush=True)
    while (elapsed := time.time() - started) < trainer.seconds:
        if trainer.steps % 8 == 0:
            feed.take(6)
        batch = feed.training.batch(*feed.training.draw(positions, rng), rng.random() < 0.25, rng.random() < 0.5, noise)
        losses = trainer.step(batch, elapsed)
        if elapsed > reported + report_seconds:
            reported = elapsed
            values = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            held = validate(trainer, feed.held_out)
            print(
                f"{elapsed:.0f} s step {trainer.steps} utterances {len(feed.training)} {values} | held out {held}",
                flush=True,
            )
            save(trainer.talker, out)
    save(trainer.talker, out)
    print(f"done: step {trainer.steps} | held out {validate(trainer, feed.held_out)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="talker.safetensors to go on from")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--positions", type=int, default=16_000)
    parser.add_argument(
        "--predictor-share",
        type=float,
        default=0.6,
        help="share of the positions from which the code predictor trains in a step",
    )
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--report-seconds", type=float, default=10)
    parser.add_argument("--hours", type=float, default=360)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    started, device = time.time(), torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans every new shape anew
    talker = Talker(TALKER)
    initialise(talker)
    if args.resume:
        talker.load_state_dict({k.removeprefix("talker."): v.float() for k, v in load_file(args.resume).items()})
    trainer = TalkerTrainer(talker.to(device), device, args.seconds, args.learning_rate, args.predictor_share)
    feed = Feed(
        ShardQueue(args.shards),
        bpe.read(args.tokenizer),
        bpe.read(args.tokenizer, 0.1),
        int(args.hours * 46_500),
        device,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    train(trainer, feed, args.out, args.positions, args.noise, started, args.report_seconds)


if __name__ == "__main__":
    main()
