"""Chunk sizes: early first sound, then as large as the listener's lead allows."""

from hypothesis import given
from hypothesis import strategies as st

from duotone.stages.chunking import next_chunk_frames
from duotone.stages.types import FRAME_S


def test_the_first_chunk_is_one_frame_however_many_are_there():
    assert next_chunk_frames(5, lead_s=-1.0, first=True, complete=False, max_chunk_frames=16) == 1
    assert next_chunk_frames(5, lead_s=-1.0, first=True, complete=True, max_chunk_frames=16) == 1


def test_a_listener_about_to_run_dry_gets_what_is_there():
    assert next_chunk_frames(1, lead_s=0.08, first=False, complete=False, max_chunk_frames=16) == 1
    assert next_chunk_frames(3, lead_s=-0.5, first=False, complete=False, max_chunk_frames=16) == 2


def test_a_long_lead_waits_for_a_large_chunk():
    lead_s = 20 * FRAME_S
    assert next_chunk_frames(9, lead_s, first=False, complete=False, max_chunk_frames=16) == 0
    assert next_chunk_frames(10, lead_s, first=False, complete=False, max_chunk_frames=16) == 8


def test_a_finished_stream_never_waits():
    assert next_chunk_frames(3, lead_s=60.0, first=False, complete=True, max_chunk_frames=16) == 3
    assert next_chunk_frames(40, lead_s=60.0, first=False, complete=True, max_chunk_frames=16) == 16


@given(
    pending=st.integers(0, 200),
    lead_s=st.floats(-100, 100),
    first=st.booleans(),
    complete=st.booleans(),
    cap=st.integers(1, 64),
)
def test_a_chunk_is_never_more_than_pending_or_the_cap(pending, lead_s, first, complete, cap):
    frames = next_chunk_frames(pending, lead_s, first, complete, cap)
    assert 0 <= frames <= min(pending, cap)
    assert frames > 0 or not complete or pending == 0


@given(pending=st.integers(16, 200), lead_s=st.floats(-100, 100), first=st.booleans())
def test_a_full_chunk_is_never_held_back(pending, lead_s, first):
    assert next_chunk_frames(pending, lead_s, first, complete=False, max_chunk_frames=16) > 0
