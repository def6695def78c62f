"""What the schedule promises on a device like an H200, with both stages as fast as they are to be (simulation.py)."""

import pytest

from duotone.stages.types import FRAME_S

from .simulation import Model, simulate

FRAMES = 62


def chunks_an_answer(records) -> float:
    return sum(len(record.chunk_bytes) for record in records) / len(records)


@pytest.mark.parametrize(
    ("streams", "audio_s_per_s", "first_p50_ms", "first_p99_ms"),
    [(1, 17, 8, 8), (16, 265, 15, 20), (64, 950, 15, 25), (128, 1600, 15, 25)],
)
def test_first_sound_is_early_nobody_runs_dry_and_chunks_are_few(streams, audio_s_per_s, first_p50_ms, first_p99_ms):
    summary, records = simulate(Model(streams), requests=max(16, 6 * streams), frames=FRAMES)
    assert (summary.inexact, summary.dry_listeners) == (0, 0)
    assert summary.audio_s_per_s > audio_s_per_s
    assert summary.first_audio_s.p50 < first_p50_ms / 1e3
    assert summary.first_audio_s.p99 < first_p99_ms / 1e3
    assert chunks_an_answer(records) < 8


def test_streams_that_hear_for_a_while_are_decoded_together():
    model = Model(64)
    simulate(model, requests=320, frames=FRAMES)
    # 320 answers one by one would take 320 · 7 steps.
    assert model.code2wav_steps < 320 * 1.25


@pytest.mark.parametrize("slower", [Model(64, code2wav_s=5e-3, frame_s=50e-6), Model(64, talker_s=10e-3)])
def test_nobody_runs_dry_while_a_slower_device_keeps_up(slower):
    summary, _ = simulate(slower, requests=320, frames=FRAMES)
    assert summary.audio_s_per_s > 450
    assert (summary.inexact, summary.dry_listeners) == (0, 0)


def test_streams_that_begin_delay_nobody_who_is_about_to_run_dry():
    summary, _ = simulate(Model(128, code2wav_s=5e-3, frame_s=50e-6), requests=640, frames=FRAMES)
    assert (summary.inexact, summary.dry_listeners) == (0, 0)
    assert summary.first_audio_s.p99 < FRAME_S
