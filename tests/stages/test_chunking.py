"""Chunk sizes: early first sound, then as large as the listener's lead allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duotone.stages.chunking import Estimate, next_chunk_frames


def chunk(pending, spare_s, first=False, complete=False, cap=16):
    return next_chunk_frames(pending, spare_s, first, complete, 0.005, cap)


def test_the_first_chunk_is_one_frame_however_many_are_there():
    assert chunk(5, spare_s=-1.0, first=True) == 1
    assert chunk(5, spare_s=-1.0, first=True, complete=True) == 1


def test_a_listener_about_to_run_dry_gets_what_is_there():
    assert chunk(1, spare_s=0.01) == 1
    assert chunk(3, spare_s=-0.5) == 2


def test_a_quarter_of_the_spare_time_is_spent_on_collecting_frames():
    assert [chunk(pending, spare_s=0.160) for pending in (7, 8, 15, 16)] == [0, 8, 8, 16]
    assert [chunk(pending, spare_s=0.159) for pending in (3, 4)] == [0, 4]


def test_a_slow_talker_is_not_waited_for_as_long_as_a_fast_one():
    assert next_chunk_frames(1, 0.080, False, False, step_s=0.005, max_chunk_frames=16) == 0
    assert next_chunk_frames(1, 0.080, False, False, step_s=0.030, max_chunk_frames=16) == 1


def test_a_finished_stream_never_waits():
    assert chunk(3, spare_s=60.0, complete=True) == 3
    assert chunk(40, spare_s=60.0, complete=True) == 16


@given(
    pending=st.integers(0, 200),
    spare_s=st.floats(-100, 100),
    first=st.booleans(),
    complete=st.booleans(),
    cap=st.integers(1, 64),
)
def test_a_chunk_is_never_more_than_pending_or_the_cap(pending, spare_s, first, complete, cap):
    frames = chunk(pending, spare_s, first, complete, cap)
    assert 0 <= frames <= min(pending, cap)
    assert frames > 0 or not complete or pending == 0


@given(pending=st.integers(16, 200), spare_s=st.floats(-100, 100), first=st.booleans())
def test_a_full_chunk_is_never_held_back(pending, spare_s, first):
    assert chunk(pending, spare_s, first) > 0


def test_an_estimate_lies_above_what_varies_and_follows_what_changes():
    estimate = Estimate()
    estimate.observe(0.012)
    assert (estimate.mean_s, estimate.upper_s) == (pytest.approx(0.012), pytest.approx(0.030))
    for at in range(100):
        estimate.observe(0.010 if at % 2 else 0.014)
    assert estimate.mean_s == pytest.approx(0.012, rel=0.1)
    assert 0.014 < estimate.upper_s < 0.025
    for _ in range(100):
        estimate.observe(0.1)
    assert estimate.upper_s == pytest.approx(0.1, rel=0.01)
