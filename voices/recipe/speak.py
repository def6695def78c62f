"""Says sentences with a checkpoint, plainly and one at a time, or decodes the teacher's codes, for measuring.

    python -m recipe.speak --checkpoint lark --sentences sentences.txt --out DIR [--temperature 0.1]
    python -m recipe.speak --checkpoint lark --shard 00000-00.npz --out DIR

Writes DIR/000.wav, 001.wav, …; with `--shard` each is one utterance of the teacher, through its codes and the decoder.
"""

import argparse
import time
import wave
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from duotone.stages.code2wav.decoder import CodecDecoder
from duotone.stages.talker.decoder import Rope, causal
from duotone.stages.talker.model import Talker, code_offsets

from . import sizes
from . import tokenizer as bpe
from .corpus import read_shard
from .prompts import AUTO_TAG, ENGLISH_TAG
from .sizes import BOOKS, CODEC, CODES, SAMPLE_RATE, TALKER

MAX_FRAMES = 400


class Cache:
    """Causal attention that keeps all keys and values: an `Attend` for one sequence."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer not in self._kept:
            self._kept[layer] = k, v
            return causal(layer, q, k, v)
        k, v = (torch.cat(pair, 2) for pair in zip(self._kept[layer], (k, v), strict=True))
        self._kept[layer] = k, v
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def pick(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """One code out of logits [n]; greedy at temperature 0."""
    if temperature <= 0:
        return int(logits.argmax())
    best, index = logits.topk(min(top_k, int((logits > -torch.inf).sum())))
    return int(index[torch.multinomial((best / temperature).softmax(-1), 1, generator=generator)])


class Speaker:
    """A checkpoint's two parts, float32, on the CPU."""

    def __init__(self, checkpoint: Path) -> None:
        self.talker, self.decoder = Talker(TALKER), CodecDecoder(CODEC)
        for module, file, prefix in (
            (self.talker, "model.safetensors", "talker."),
            (self.decoder, "speech_tokenizer/model.safetensors", "decoder."),
        ):
            module.load_state_dict({k.removeprefix(prefix): v.float() for k, v in load_file(checkpoint / file).items()})
            module.requires_grad_(False)
        self.tokenizer = bpe.read(checkpoint)
        self.table, self.offsets = self.talker.code_table(), code_offsets(TALKER)
        self.rope = Rope.table(TALKER, MAX_FRAMES + 512)
        self.frame_rope = Rope.table(TALKER.code_predictor_config, BOOKS)

    def prompt(self, text: str, english: bool) -> Tensor:
        """Non-streaming prompt, embedded: [1, P, hidden]."""
        ids = self.tokenizer.encode(f"<|im_start|>assistant\n{text}", add_special_tokens=False).ids
        tag = ENGLISH_TAG if english else AUTO_TAG
        texts = ids[:3] + [sizes.TTS_PAD] * (len(tag) - 1) + [sizes.TTS_BOS] + ids[3:] + [sizes.TTS_EOS, sizes.TTS_PAD]
        codes = [len(self.table) - 1] * 3 + list(tag) + [TALKER.codec_pad_id] * (len(ids) - 2) + [TALKER.codec_bos_id]
        return (self.talker.embed_text(torch.tensor(texts)) + self.table[torch.tensor(codes)])[None]

    @torch.no_grad()
    def frames(
        self,
        text: str,
        temperature: float,
        predictor_temperature: float,
        penalty: float,
        seed: int,
        english: bool = False,
    ) -> Tensor:
        """int64 [T, 16], sampled as MODEL.md's order says."""
        generator = torch.Generator().manual_seed(seed)
        cache, inputs, position = Cache(), self.prompt(text, english), 0
        frames: list[Tensor] = []
        pad = self.talker.embed_text(torch.tensor(sizes.TTS_PAD))
        while len(frames) < MAX_FRAMES:
            hidden, logits = self.talker(inputs, self.rope.at(slice(position, position + inputs.shape[1])), cache)
            position += inputs.shape[1]
            score = logits[0, -1].clone()
            used = torch.tensor(sorted({int(f[0]) for f in frames}), dtype=torch.int64)
            score[used] = torch.where(score[used] > 0, score[used] / penalty, score[used] * penalty)
            eos = float(score[TALKER.codec_eos_token_id])
            score[CODES:] = -torch.inf
            score[TALKER.codec_eos_token_id] = eos if len(frames) >= 2 else -torch.inf
            first = pick(score, temperature, 50, generator)
            if first == TALKER.codec_eos_token_id:
                break
            frames.append(self._complete(hidden[0, -1], first, predictor_temperature, generator))
            inputs = (self.table[frames[-1] + self.offsets].sum(0) + pad)[None, None]
        return torch.stack(frames)

    def _complete(self, hidden: Tensor, first: int, temperature: float, generator: torch.Generator) -> Tensor:
        predictor = self.talker.code_predictor
        cache, codes = Cache(), [first]
        inputs = torch.stack((hidden, self.table[first]))[None]
        for book in range(BOOKS - 1):
            at = slice(0, 2) if book == 0 else slice(book + 1, book + 2)
            out = predictor.model(predictor.small_to_mtp_projection(inputs), self.frame_rope.at(at), cache)
            codes.append(pick(predictor.lm_head[book](out[0, -1]), temperature, 50, generator))
            inputs = self.table[codes[-1] + int(self.offsets[book + 1])][None, None]
        return torch.tensor(codes)

    @torch.no_grad()
    def samples(self, frames: Tensor) -> np.ndarray:
        """float32 [T · 1920] of int64 [T, 16]."""
        return self.decoder(frames[None])[0].numpy()


def write_wave(file: Path, samples: np.ndarray) -> None:
    """Mono, 16 bit, 24 kHz."""
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sentences", type=Path)
    what.add_argument("--shard", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--predictor-temperature", type=float, default=0.1)
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--english", action="store_true", help="say the language instead of leaving it open")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    speaker = Speaker(args.checkpoint)
    started, total = time.time(), 0
    if args.shard:
        spoken = (torch.from_numpy(codes).long() for codes in read_shard(args.shard).utterances())
    else:
        lines = [line.strip() for line in args.sentences.read_text().splitlines() if line.strip()]
        spoken = (
            speaker.frames(
                line, args.temperature, args.predictor_temperature, args.penalty, args.seed + index, args.english
            )
            for index, line in enumerate(lines)
        )
    for index, frames in enumerate(spoken):
        write_wave(args.out / f"{index:03d}.wav", speaker.samples(frames))
        total += len(frames)
    print(f"{total * 0.08:.1f} s of speech in {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
