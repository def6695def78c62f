"""What the schedule promises on a device like an H200 and on two CPU cores (simulation.py)."""

import pytest

from duotone.stages.types import FRAME_S

from .simulation import ALIKE, MIXED, TWO_CORES, Model, simulate


def chunks_an_answer(records) -> float:
    return sum(len(record.chunk_bytes) for record in records) / len(records)


@pytest.mark.parametrize(
    ("streams", "audio_s_per_s", "first_p50_ms", "first_p99_ms"),
    [(1, 17, 8, 8), (16, 265, 15, 20), (64, 950, 15, 25), (128, 1600, 15, 25)],
)
def test_first_sound_is_early_nobody_runs_dry_and_chunks_are_few(streams, audio_s_per_s, first_p50_ms, first_p99_ms):
    summary, records = simulate(Model(streams), requests=max(16, 6 * streams))
    assert summary.dry_listeners == 0
    assert summary.audio_s_per_s > audio_s_per_s
    assert summary.first_audio_s.p50 < first_p50_ms / 1e3
    assert summary.first_audio_s.p99 < first_p99_ms / 1e3
    assert chunks_an_answer(records) < 8


def test_streams_that_are_out_of_step_are_still_decoded_together():
    model = Model(128)
    summary, _ = simulate(model, requests=640, frames=MIXED)
    assert summary.dry_listeners == 0
    assert summary.audio_s_per_s > 1000
    # Answers decoded one by one would take seven steps each and more.
    assert model.code2wav_steps < 640 * 1.5


@pytest.mark.parametrize("slower", [Model(64, code2wav_s=5e-3, frame_s=50e-6), Model(64, talker_s=10e-3)])
def test_nobody_runs_dry_while_a_slower_device_keeps_up(slower):
    summary, _ = simulate(slower, requests=320)
    assert summary.audio_s_per_s > 450
    assert summary.dry_listeners == 0


def test_streams_that_begin_delay_nobody_who_is_about_to_run_dry():
    summary, _ = simulate(Model(128, code2wav_s=5e-3, frame_s=50e-6), requests=640)
    assert summary.dry_listeners == 0
    assert summary.first_audio_s.p99 < FRAME_S


@pytest.mark.parametrize("frames", [ALIKE, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("streams", [4, 8])
@pytest.mark.parametrize(("slowness", "audio_s_per_s"), [(1, 27), (2, 14)])
def test_on_two_cpu_cores_nobody_runs_dry(frames, streams, slowness, audio_s_per_s):
    code2wav = {name: slowness * TWO_CORES[name] for name in ("code2wav_s", "frame_s")}
    summary, _ = simulate(Model(streams, **{**TWO_CORES, **code2wav}), requests=8 * streams, frames=frames)
    assert summary.dry_listeners == 0
    assert summary.audio_s_per_s > audio_s_per_s
    assert summary.first_audio_s.p50 < 0.07
    assert summary.first_audio_s.p99 < 0.12
