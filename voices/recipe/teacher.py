"""The teacher's speech: hibari (voice heart) reads the sentences; audio, word times and phonemes go to shards on disk.

    python -m recipe.teacher --sentences sentences.txt.gz --shards DIR --workers 14 --seconds 300

Each worker is a process of its own with one thread; a shard appears under its final name only when it is complete, so
that training can start on the first ones. The same sentences give the same shards (noise seeded by the sentence).

The teacher's pulses are moved to where the codes say that they are, by a few hertz.
"""

import argparse
import math
import multiprocessing
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import hibari
import numpy as np
import onnx
from hibari import Hibari, dsp
from hibari.g2p.normalize import normalize

from .codes import STEPS, encode
from .sizes import FRAME_SAMPLES, SAMPLE_RATE
from .text import read_sentences
from .voicing import HOP_SAMPLES, STEP_SAMPLES, voicing

TEACHER_HOP_SAMPLES = 2 * HOP_SAMPLES  # of its durations
LEAD_SAMPLES = int(0.08 * SAMPLE_RATE)
TAIL_SAMPLES = int(0.38 * SAMPLE_RATE)
MAX_FRAMES = 250
UTTERANCES_PER_SHARD = 64
SECONDS_PER_SHARD = 240  # about
_DURATIONS = "/Cast_32_output_0"


@dataclass(frozen=True)
class Utterance:
    """One spoken text. `words` rows are (first character, end character, first sample, end sample)."""

    text: str
    samples: np.ndarray  # int16 [frames · 1920]
    words: np.ndarray  # int32 [W, 4]
    codes: np.ndarray  # uint8 [frames, 16]


@dataclass(frozen=True)
class Spoken:
    """What the teacher says of one sentence, or of several joined; the tracks begin at the start of the whole."""

    samples: np.ndarray  # float32 [S]
    words: np.ndarray  # int32 [W, 4]
    phonemes: np.ndarray  # uint8 [S / 300], the teacher's ids
    pitch: np.ndarray  # uint8 [about S / 960], codes at the ends of 40 ms
    cycles: np.ndarray  # uint8 [about S / 480], codes in the middles of 20 ms


def synthesise(parts: list[np.ndarray], train: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """float32 samples: the teacher's `dsp.synth` of its five spectra [601, F] with a pulse train of ours."""
    harmonic, turn, noise, free, free_phase = parts
    spectrum = dsp.stft(train, harmonic.shape[1]) * (dsp.ex(harmonic) * np.exp(1j * np.pi * np.tanh(turn)))
    shape = (harmonic.shape[0], 2 * harmonic.shape[1])
    spectrum += dsp.ex(noise) * rng.standard_normal(shape, dtype=np.float32).view(np.complex64)
    spectrum += dsp.ex(free) * np.exp(1j * free_phase)
    return dsp.ola(spectrum.astype(np.complex64))


def expose_durations(source: Path, target: Path) -> None:
    """Copy the teacher's graph with one output more: hops of 25 ms a phoneme id."""
    model = onnx.load(str(source))
    model.graph.output.append(onnx.helper.make_tensor_value_info(_DURATIONS, onnx.TensorProto.INT64, None))
    onnx.save(model, str(target))


class Teacher:
    """hibari with its durations. One instance a process."""

    def __init__(self, graph: Path) -> None:
        self._tts = Hibari(model=str(graph), threads=1)

    def _sentence(self, text: str, characters: int, before: int, rng: np.random.Generator) -> Spoken | None:
        """One sentence, `characters` and `before` samples behind the start of the whole; None for a text that would be
        read otherwise.
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
        ends = np.concatenate([[0], np.cumsum(durations)]) * TEACHER_HOP_SAMPLES + before
        *spectra, pitch_hz = (part[0] for part in parts)
        glottis = voicing(pitch_hz, before)
        words = [(a + characters, b + characters, ends[first], ends[end]) for a, b, first, end in spans if end > first]
        return Spoken(
            synthesise(spectra, glottis.pulses, rng),
            np.asarray(words, np.int32).reshape(-1, 4),
            np.repeat(np.asarray(ids, np.uint8), 2 * durations),
            glottis.pitch,
            glottis.cycles,
        )

    def speak(self, text: str) -> Utterance | None:
        """The utterance with its silence trimmed, filled up to whole frames; None where the text is not read as
        written or is too long.
        """
        if normalize(text) != text:
            return None
        rng = np.random.default_rng(hash_text(text))
        parts: list[Spoken] = []
        character, sample = 0, 0
        for sentence in self._tts.split_sentences(text):
            character = text.index(sentence, character)
            spoken = self._sentence(sentence, character, sample, rng)
            if spoken is None:
                return None
            parts.append(spoken)
            character += len(sentence)
            sample += len(spoken.samples)
        if not parts:
            return None
        joined = {field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Spoken)}
        return _trim(text, Spoken(**joined))


def hash_text(text: str) -> int:
    """A stable 32-bit number of `text`, to seed its noise."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def _trim(text: str, spoken: Spoken) -> Utterance | None:
    """Cut the outer silence, leaving a little, and fill up with zeros to whole frames."""
    samples = spoken.samples
    hops = np.abs(samples[: len(samples) // 240 * 240].reshape(-1, 240)).max(axis=1)
    loud = np.flatnonzero(hops > max(0.004, 0.012 * hops.max()))
    if not len(loud):
        return None
    start = max(0, int(loud[0]) * 240 - LEAD_SAMPLES) // (2 * STEP_SAMPLES) * 2 * STEP_SAMPLES
    end = min(len(samples), (int(loud[-1]) + 1) * 240 + TAIL_SAMPLES)
    frames = -(-(end - start) // FRAME_SAMPLES)
    if not 2 <= frames <= MAX_FRAMES:
        return None
    filled = np.zeros(frames * FRAME_SAMPLES, np.float32)
    filled[: end - start] = samples[start:end]
    fade = np.linspace(0, 1, 120, dtype=np.float32)
    filled[:120] *= fade
    filled[end - start - 120 : end - start] *= fade[::-1]
    words = spoken.words.copy()
    words[:, 2:] = np.clip(words[:, 2:] - start, 0, frames * FRAME_SAMPLES)
    middle = (np.arange(frames * STEPS) + 0.5) * STEP_SAMPLES + start
    phonemes = spoken.phonemes[np.minimum(middle // HOP_SAMPLES, len(spoken.phonemes) - 1).astype(int)]
    pitch, cycles = (
        _from(track, start // STEP_SAMPLES // each, frames * STEPS // each)
        for track, each in ((spoken.pitch, 2), (spoken.cycles, 1))
    )
    whole = (np.clip(filled, -1, 1) * 32767).astype(np.int16)
    return Utterance(text, whole, words, encode(phonemes, pitch, cycles, whole))


def _from(track: np.ndarray, first: int, count: int) -> np.ndarray:
    """`count` codes of a track, 0 behind its end."""
    return np.pad(track, (0, count))[first : first + count]


def write_shard(utterances: list[Utterance], path: Path, with_samples: bool) -> None:
    """One shard, readable under `path` only when whole."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        texts=np.asarray([u.text for u in utterances]),
        frames=np.asarray([len(u.codes) for u in utterances], np.int32),
        samples=np.concatenate([u.samples for u in utterances]) if with_samples else np.zeros(0, np.int16),
        codes=np.concatenate([u.codes for u in utterances]),
        word_counts=np.asarray([len(u.words) for u in utterances], np.int32),
        words=np.concatenate([u.words for u in utterances]),
    )
    os.replace(partial, path)


def _work(
    worker: int, workers: int, sentences: list[str], graph: Path, shards: Path, deadline: float, audio_shards: int
) -> None:
    os.nice(10)  # training is fed from the same cores
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
            write_shard(done, shards / f"{shard:05d}-{worker:02d}.npz", shard < audio_shards)
            done, shard = [], shard + 1
    if done:
        write_shard(done, shards / f"{shard:05d}-{worker:02d}.npz", shard < audio_shards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long, even when sentences are left")
    parser.add_argument("--audio-hours", type=float, default=50, help="of speech that is kept, beside its codes")
    args = parser.parse_args()
    deadline = time.time() + args.seconds
    sentences = read_sentences(args.sentences)
    args.shards.mkdir(parents=True, exist_ok=True)
    graph = args.shards / "teacher.onnx"
    expose_durations(Path(hibari.__file__).parent / "assets/hibari.onnx", graph)
    audio_shards = math.ceil(args.audio_hours * 3600 / SECONDS_PER_SHARD / args.workers)
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=_work, args=(i, args.workers, sentences, graph, args.shards, deadline, audio_shards))
        for i in range(args.workers)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


if __name__ == "__main__":
    main()
