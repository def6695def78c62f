"""The training codes of the glottis: what they say is where the pulses are."""

import numpy as np
import pytest

from duotone.voices.recipe.codes import PHASES, coded_hz, pitch_codes
from duotone.voices.recipe.voicing import HOP_SAMPLES, STEP_SAMPLES, voicing

RISING_HZ = np.concatenate((np.zeros(8), np.linspace(140, 260, 64), np.zeros(8))).astype(np.float32)


@pytest.mark.parametrize("before", [0, 600, 1800])
def test_a_cycle_follows_from_the_one_before_and_the_pitch(before: int) -> None:
    glottis = voicing(RISING_HZ, before)
    middles = np.arange(len(glottis.cycles)) * STEP_SAMPLES + (STEP_SAMPLES // 2 - before) % STEP_SAMPLES
    ends = np.arange(len(glottis.pitch)) * 2 * STEP_SAMPLES + 2 * STEP_SAMPLES - before % (2 * STEP_SAMPLES)
    voiced = glottis.pitch > 0
    hertz = np.interp(
        np.arange(len(RISING_HZ) * HOP_SAMPLES), ends[voiced], coded_hz(glottis.pitch[voiced].astype(float))
    )
    turned = np.diff(np.cumsum(hertz)[middles]) / 24_000 * PHASES
    inside = (middles > ends[voiced][0]) & (middles < ends[voiced][-1]) & (glottis.cycles > 0)
    off = np.diff(glottis.cycles.astype(int)) - turned
    off = (off + PHASES / 2) % PHASES - PHASES / 2
    assert np.abs(off[inside[1:] & inside[:-1]]).max() < 1
    assert inside.sum() > 30


def test_pulses_stand_where_the_cycle_begins() -> None:
    glottis = voicing(np.full(80, 200, np.float32), 0)
    peaks = np.flatnonzero(glottis.pulses > 0.9 * glottis.pulses.max())
    middles = np.arange(len(glottis.cycles)) * STEP_SAMPLES + STEP_SAMPLES // 2
    period = 24_000 / coded_hz(glottis.pitch[:1].astype(float))[0]
    for middle, cycle in zip(middles[2:-2], glottis.cycles[2:-2], strict=True):
        begin = middle - (int(cycle) - 1) / PHASES * period
        assert np.abs(peaks - begin).min() < 2


def test_what_is_unvoiced_has_neither_pulses_nor_codes() -> None:
    glottis = voicing(RISING_HZ, 0)
    silent = 6 * HOP_SAMPLES
    assert not glottis.pulses[:silent].any()
    assert not glottis.cycles[: silent // STEP_SAMPLES].any()
    assert not glottis.pitch[: silent // (2 * STEP_SAMPLES)].any()


def test_a_coded_pitch_is_within_half_a_percent() -> None:
    hertz = np.linspace(100, 340, 500)
    assert np.abs(coded_hz(pitch_codes(hertz)) / hertz - 1).max() < 0.005
