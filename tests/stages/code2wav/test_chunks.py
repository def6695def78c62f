"""Sizes of chunks, who gets how much of a step, and samples as int16."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duotone.stages.code2wav.chunks import choose_alike, chunk_sizes, to_int16


@pytest.mark.parametrize(("largest", "sizes"), [(1, [1]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_chunk_sizes_are_powers_of_two_and_the_largest(largest, sizes):
    assert chunk_sizes(largest) == sizes


@given(
    pending=st.lists(st.integers(1, 20), min_size=1, max_size=20),
    most_frames=st.integers(1, 16),
    urgent=st.integers(0, 20),
)
def test_a_step_takes_as_many_frames_of_each_and_first_the_most_urgent(pending, most_frames, urgent):
    sizes = [size for size in chunk_sizes(8) if size <= most_frames]
    chosen = choose_alike(sizes, pending, most_frames, min(urgent, len(pending)))
    taken = [frames for frames in chosen if frames]
    assert chosen[0] in sizes
    assert len(set(taken)) == 1
    assert sum(taken) <= most_frames
    assert all(frames <= count for frames, count in zip(chosen, pending, strict=True))
    if urgent:
        assert taken == chosen[: len(taken)]
        assert len(taken) == min(urgent, len(pending), most_frames)


def test_floats_become_int16_clamped_and_rounded_to_nearest():
    steps = torch.tensor([0.0, 0.4, 0.6, -0.4, -0.6, 1000.4])
    assert to_int16(steps / 32_767).tolist() == [0, 0, 1, 0, -1, 1000]
    assert to_int16(torch.tensor([1.0, -1.0, 1.5, -7.0])).tolist() == [32_767, -32_767, 32_767, -32_767]
    assert to_int16(torch.tensor([0.5], dtype=torch.bfloat16)).tolist() == [16_384]
