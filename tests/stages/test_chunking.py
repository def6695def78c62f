"""Chunk sizes: early first sound, then as large as the listener's lead allows, and in step with other streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duotone.stages.chunking import Estimate, Pace, next_chunk_frames

STEP_S = 0.005


def chunk(pending, spare_s, steps, first=False, complete=False, cap=16):
    return next_chunk_frames(pending, spare_s, first, complete, Pace(steps, STEP_S), cap)


def test_the_first_chunk_is_one_frame_however_many_are_there():
    assert chunk(5, spare_s=-1.0, steps=3, first=True) == 1
    assert chunk(5, spare_s=-1.0, steps=3, first=True, complete=True) == 1


def test_a_listener_about_to_run_dry_gets_what_is_there_behind_any_step():
    assert chunk(1, spare_s=0.01, steps=3) == 1
    assert chunk(3, spare_s=-0.5, steps=3) == 2


def test_half_of_the_spare_time_is_spent_on_collecting_frames():
    assert chunk(7, spare_s=0.080, steps=8) == 4
    assert [chunk(pending, spare_s=0.080, steps=8) for pending in (3, 4)] == [0, 4]
    assert [chunk(pending, spare_s=0.079, steps=8) for pending in (1, 2, 3, 4)] == [0, 2, 2, 4]


def test_streams_that_want_chunks_of_a_size_send_them_behind_the_same_steps():
    assert [steps for steps in range(1, 65) if chunk(15, spare_s=1.0, steps=steps)] == [16, 32, 48, 64]
    assert [steps for steps in range(1, 17) if chunk(7, spare_s=0.06, steps=steps)] == [4, 8, 12, 16]


def test_a_stream_that_missed_its_step_waits_no_longer_than_for_a_second_chunk():
    assert [chunk(pending, spare_s=1.0, steps=5) for pending in (31, 32)] == [0, 16]


def test_a_finished_stream_never_waits():
    assert chunk(3, spare_s=60.0, steps=1, complete=True) == 3
    assert chunk(40, spare_s=60.0, steps=1, complete=True) == 16


@given(
    pending=st.integers(0, 200),
    spare_s=st.floats(-100, 100),
    steps=st.integers(1, 64),
    first=st.booleans(),
    complete=st.booleans(),
    cap=st.integers(1, 64),
)
def test_a_chunk_is_never_more_than_pending_or_the_cap(pending, spare_s, steps, first, complete, cap):
    frames = chunk(pending, spare_s, steps, first, complete, cap)
    assert 0 <= frames <= min(pending, cap)
    assert frames > 0 or not complete or pending == 0


@given(pending=st.integers(32, 200), spare_s=st.floats(-100, 100), steps=st.integers(1, 64), first=st.booleans())
def test_two_full_chunks_are_never_held_back(pending, spare_s, steps, first):
    assert chunk(pending, spare_s, steps, first) > 0


def test_an_estimate_lies_above_what_varies_and_follows_what_changes():
    estimate = Estimate()
    for at in range(100):
        estimate.observe(0.010 if at % 2 else 0.014)
    assert estimate.mean_s == pytest.approx(0.012, rel=0.1)
    assert 0.014 < estimate.upper_s < 0.025
    for _ in range(100):
        estimate.observe(0.1)
    assert estimate.upper_s == pytest.approx(0.1, rel=0.01)


def test_a_pace_is_the_mean_of_its_first_steps_and_follows_later_ones():
    pace = Pace()
    for step_s in (0.2, 0.1):
        pace.stepped(step_s)
    assert (pace.steps, pace.step_s) == (2, pytest.approx(0.15))
    for _ in range(100):
        pace.stepped(0.01)
    assert pace.step_s == pytest.approx(0.01, rel=0.01)
