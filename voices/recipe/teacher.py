"""The teacher's speech: hibari (voice heart) reads the sentences; audio, word times and phonemes go to shards on disk.

    python -m recipe.teacher --sentences sentences.txt.gz --shards DIR --workers 14 --seconds 300

Needs `hibari-tts`, `onnx`, `onnxruntime`, `scipy`. Each worker is a process of its own with one thread; a shard
appears under its final name only
when it is complete, so that training can start on the first ones. The same sentences give the same shards (noise
seeded by the sentence).
"""

import argparse
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import hibari
import numpy as np
import onnx
from hibari import Hibari, dsp
from hibari.g2p.normalize import normalize

from .text import read_sentences

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1920
TEACHER_HOP_SAMPLES = 600  # of its durations; its spectrum and its pitch have two columns in each
VOICED_HZ = 40  # below, the teacher's synthesis makes no pulses
LABELS_PER_FRAME = 4
LEAD_SAMPLES = int(0.06 * SAMPLE_RATE)
TAIL_SAMPLES = int(0.16 * SAMPLE_RATE)
MAX_FRAMES = 190
UTTERANCES_PER_SHARD = 64
_DURATIONS = "/Cast_32_output_0"


@dataclass(frozen=True)
class Utterance:
    """One spoken text. `words` rows are (first character, end character, first sample, end sample)."""

    text: str
    samples: np.ndarray  # int16 [frames · 1920]
    words: np.ndarray  # int32 [W, 4]
    phonemes: np.ndarray  # uint8 [frames · 4], the teacher's phoneme id in the middle of each 20 ms
    pitch_hz: np.ndarray  # float16 [frames · 4], there too; 0 where the teacher's voice does not vibrate


def expose_durations(source: Path, target: Path) -> None:
    """Copy the teacher's graph with one output more: hops of 25 ms a phoneme id."""
    model = onnx.load(str(source))
    model.graph.output.append(onnx.helper.make_tensor_value_info(_DURATIONS, onnx.TensorProto.INT64, None))
    onnx.save(model, str(target))


class Teacher:
    """hibari with its durations. One instance a process."""

    def __init__(self, graph: Path) -> None:
        self._tts = Hibari(model=str(graph), threads=1)

    def _sentence(
        self, text: str, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[tuple[int, int, int, int]], np.ndarray, np.ndarray] | None:
        """(float32 samples, words in samples and characters of `text`, phoneme id and pitch in Hz per 12.5 ms), or
        None for a text it would read otherwise.
        """
        tokens = self._tts.g2p.phonemize_tokens(self._tts.g2p.tokenize(text))
        if "".join(t.text + t.whitespace for t in tokens).strip() != text or any(t.phonemes is None for t in tokens):
            return None
        spans: list[tuple[int, int, int, int]] = []
        ids, position = [0], 0
        for token in tokens:
            first = len(ids)
            ids += [self._tts.vocab[c] for c in token.phonemes if c in self._tts.vocab]
            spans.append((position, position + len(token.text), first, len(ids)))
            position += len(token.text) + len(token.whitespace)
            if token.whitespace:
                ids.append(self._tts.vocab[" "])
        ids.append(0)
        if not 3 <= len(ids) <= 400:
            return None
        feeds = {"ids": np.asarray([ids], np.int64), "speed": np.ones(1, np.float32)}
        *parts, durations = self._tts.sess.run(["lh", "theta", "ln", "lr", "phi", "f0", _DURATIONS], feeds)
        durations = durations.reshape(-1)
        ends = np.concatenate([[0], np.cumsum(durations)]) * TEACHER_HOP_SAMPLES
        samples = dsp.synth(*(part[0] for part in parts), rng)
        words = [(a, b, int(ends[first]), int(ends[end])) for a, b, first, end in spans if end > first]
        return samples, words, np.repeat(np.asarray(ids, np.uint8), 2 * durations), parts[-1][0]

    def speak(self, text: str) -> Utterance | None:
        """The utterance with its silence trimmed, filled up to whole frames; None where the text is not read as
        written or is too long.
        """
        if normalize(text) != text:
            return None
        rng = np.random.default_rng(abs(hash_text(text)))
        samples: list[np.ndarray] = []
        words: list[tuple[int, int, int, int]] = []
        labels: list[np.ndarray] = []
        pitch_hz: list[np.ndarray] = []
        character, sample = 0, 0
        for sentence in self._tts.split_sentences(text):
            character = text.index(sentence, character)
            spoken = self._sentence(sentence, rng)
            if spoken is None:
                return None
            words += [(a + character, b + character, s + sample, e + sample) for a, b, s, e in spoken[1]]
            samples.append(spoken[0])
            labels.append(spoken[2])
            pitch_hz.append(spoken[3])
            character += len(sentence)
            sample += len(spoken[0])
        if not words:
            return None
        tracks = np.concatenate(labels), np.concatenate(pitch_hz)
        return _trim(text, np.concatenate(samples), np.asarray(words, np.int32), *tracks)


def hash_text(text: str) -> int:
    """A stable 32-bit number of `text`, to seed its noise."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def _trim(
    text: str, samples: np.ndarray, words: np.ndarray, labels: np.ndarray, pitch_hz: np.ndarray
) -> Utterance | None:
    """Cut the outer silence, leaving a little, and fill up with zeros to whole frames."""
    hops = np.abs(samples[: len(samples) // 240 * 240].reshape(-1, 240)).max(axis=1)
    loud = np.flatnonzero(hops > max(0.004, 0.012 * hops.max()))
    if not len(loud):
        return None
    start = max(0, int(loud[0]) * 240 - LEAD_SAMPLES)
    end = min(len(samples), (int(loud[-1]) + 1) * 240 + TAIL_SAMPLES)
    frames = -(-(end - start) // FRAME_SAMPLES)
    if not 2 <= frames <= MAX_FRAMES:
        return None
    filled = np.zeros(frames * FRAME_SAMPLES, np.float32)
    filled[: end - start] = samples[start:end]
    fade = np.linspace(0, 1, 120, dtype=np.float32)
    filled[:120] *= fade
    filled[end - start - 120 : end - start] *= fade[::-1]
    words = words.copy()
    words[:, 2:] = np.clip(words[:, 2:] - start, 0, frames * FRAME_SAMPLES)
    middle = (np.arange(frames * LABELS_PER_FRAME) + 0.5) * FRAME_SAMPLES / LABELS_PER_FRAME + start
    column = np.clip(middle // (TEACHER_HOP_SAMPLES // 2), 0, len(labels) - 1).astype(int)
    pitch_hz = np.where(pitch_hz > VOICED_HZ, pitch_hz, 0)[column].astype(np.float16)
    return Utterance(text, (np.clip(filled, -1, 1) * 32767).astype(np.int16), words, labels[column], pitch_hz)


def write_shard(utterances: list[Utterance], path: Path) -> None:
    """One shard, readable under `path` only when whole."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        texts=np.asarray([u.text for u in utterances]),
        frames=np.asarray([len(u.samples) // FRAME_SAMPLES for u in utterances], np.int32),
        samples=np.concatenate([u.samples for u in utterances]),
        phonemes=np.concatenate([u.phonemes for u in utterances]),
        pitch_hz=np.concatenate([u.pitch_hz for u in utterances]),
        word_counts=np.asarray([len(u.words) for u in utterances], np.int32),
        words=np.concatenate([u.words for u in utterances]),
    )
    os.replace(partial, path)


def _work(worker: int, workers: int, sentences: list[str], graph: Path, shards: Path, deadline: float) -> None:
    teacher = Teacher(graph)
    done: list[Utterance] = []
    shard = 0
    for text in sentences[worker::workers]:
        if time.time() > deadline:
            break
        utterance = teacher.speak(text)
        if utterance is not None:
            done.append(utterance)
        if len(done) == UTTERANCES_PER_SHARD:
            write_shard(done, shards / f"{shard:05d}-{worker:02d}.npz")
            done, shard = [], shard + 1
    if done:
        write_shard(done, shards / f"{shard:05d}-{worker:02d}.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long, even when sentences are left")
    args = parser.parse_args()
    deadline = time.time() + args.seconds
    sentences = read_sentences(args.sentences)
    args.shards.mkdir(parents=True, exist_ok=True)
    graph = args.shards / "teacher.onnx"
    expose_durations(Path(hibari.__file__).parent / "assets/hibari.onnx", graph)
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=_work, args=(i, args.workers, sentences, graph, args.shards, deadline))
        for i in range(args.workers)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


if __name__ == "__main__":
    main()
