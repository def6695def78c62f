"""The 16 codes of a frame: readable facts about the teacher's speech, not a learned quantisation.

    book 0 … 3    the phoneme in each 20 ms of the frame: its place in `TEACHER_IDS`, 0 silence
    book 4 … 6    the next three phonemes behind the frame: the decoder is causal and must hear them come; 0 at the end
    book 7        20 ms steps, at most 31, that the frame's last phoneme goes on behind it
    book 8, 9     pitch at the end of each 40 ms: 0 unvoiced, 1 … 127 from 100 to 340 Hz in equal ratios
    book 10 … 13  the glottal cycle in the middle of each 20 ms: 0 unvoiced, 1 … 32 where in the cycle it stands
    book 14, 15   level of each 40 ms: 0 … 31 from -60 dB in steps of 1.5 dB

Text decides most of them, so that a small Talker predicts them surely; a learned quantiser's codes were noise to it.
Pitch and cycle decide where the glottal pulses fall, so that the decoder is told the waveform's phase and need not
invent one; a cycle follows from the one before and the pitch.
"""

import numpy as np

from .sizes import BOOKS, FRAME_SAMPLES

STEPS = 4
"""20 ms steps of a frame: what the teacher's phonemes and pitch are given for."""
AHEAD = 3
PLAN = range(4, 8)
"""The books that tell of what comes behind their frame."""
# fmt: off
TEACHER_IDS = np.array((
    0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 31, 33, 35, 36, 39,
    41, 42, 43, 44, 45, 46, 47, 48, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68,
    69, 70, 71, 72, 75, 76, 77, 78, 80, 81, 82, 83, 85, 86, 87, 90, 92, 99, 101, 102, 103, 110, 111, 112, 113,
    114, 115, 116, 118, 119, 120, 123, 125, 126, 128, 129, 130, 131, 132, 133, 135, 136, 138, 139, 140, 142,
    143, 147, 148, 156, 157, 158, 162, 164, 169, 171, 172, 173, 177,
))
# fmt: on
"""The teacher's phoneme ids (a stress mark, a space and a comma are phonemes too) in the order of our codes."""
MOST_STEPS_LEFT = 31
PITCH = slice(8, 10)
CYCLES = range(10, 14)
LEVEL = slice(14, 16)
VOICING = range(8, 14)
"""The books of pitch and cycle."""
PITCH_LEVELS = 127
PHASES = 32
"""Places in a glottal cycle that the codes tell apart; the teacher's speech is moved onto them."""
LOWEST_HZ, HIGHEST_HZ = 100.0, 340.0
LEVELS = 32
LOWEST_DB, LEVEL_DB = -60.0, 1.5


def encode(phonemes: np.ndarray, pitch: np.ndarray, cycles: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """uint8 [T, 16] of one utterance: the teacher's phoneme ids and codes of the cycle, each uint8 [T · 4], codes of
    the pitch, uint8 [T · 2], and int16 samples [T · 1920].
    """
    phonemes = np.searchsorted(TEACHER_IDS, phonemes).astype(np.uint8)
    codes = np.zeros((len(phonemes) // STEPS, BOOKS), np.uint8)
    codes[:, :STEPS] = phonemes.reshape(-1, STEPS)
    codes[:, PLAN[0] : PLAN[AHEAD]], codes[:, PLAN[AHEAD]] = _coming(phonemes)
    codes[:, PITCH] = pitch.reshape(-1, 2)
    codes[:, CYCLES.start : CYCLES.stop] = cycles.reshape(-1, STEPS)
    codes[:, LEVEL] = _level(samples).reshape(-1, 2)
    return codes


def _coming(phonemes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the next phonemes, steps that the last one goes on [T]) behind each frame: the next phonemes are [T, 2]."""
    begins = np.flatnonzero(np.diff(phonemes, prepend=phonemes[:1] ^ 1))
    run = np.searchsorted(begins, np.arange(STEPS - 1, len(phonemes), STEPS), side="right") - 1
    names = np.concatenate((phonemes[begins], np.zeros(AHEAD, phonemes.dtype)))
    ends = np.append(begins[1:], len(phonemes))
    left = ends[run] - 1 - np.arange(STEPS - 1, len(phonemes), STEPS)
    return names[run[:, None] + np.arange(1, AHEAD + 1)], np.minimum(left, MOST_STEPS_LEFT)


def pitch_codes(pitch_hz: np.ndarray) -> np.ndarray:
    """Codes, float, of voiced pitches."""
    octaves = np.log2(np.clip(pitch_hz, LOWEST_HZ, HIGHEST_HZ) / LOWEST_HZ)
    return 1 + np.rint(octaves / np.log2(HIGHEST_HZ / LOWEST_HZ) * (PITCH_LEVELS - 1))


def coded_hz(codes: np.ndarray) -> np.ndarray:
    """The pitches that voiced codes stand for."""
    return LOWEST_HZ * (HIGHEST_HZ / LOWEST_HZ) ** ((codes - 1) / (PITCH_LEVELS - 1))


def _level(samples: np.ndarray) -> np.ndarray:
    """Codes of each 40 ms: their root mean square."""
    steps = samples.reshape(-1, FRAME_SAMPLES // 2).astype(np.float32) / 32768
    decibel = 10 * np.log10(np.square(steps).mean(1) + 1e-12)
    return np.clip(np.rint((decibel - LOWEST_DB) / LEVEL_DB), 0, LEVELS - 1)
