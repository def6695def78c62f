"""The engine shares its steps among streams without any of them hearing it, and survives whatever it is told."""

import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duotone.stages.code2wav import layers
from duotone.stages.code2wav.chunks import URGENT_FRAMES, choose_alike, chunk_sizes, to_int16
from duotone.stages.code2wav.engine import FIRST_BATCH_FRAMES, URGENT_S, Code2WavEngine
from duotone.stages.errors import RequestError
from duotone.stages.messages import Abort, Decode
from duotone.stages.pipeline import Code2WavOptions
from duotone.stages.types import SAMPLES_PER_FRAME

from .hearing import CASES, Ear, assert_heard, decode, speak_all

LONG, MIDDLE, SHORT = CASES["codec_08"], CASES["codec_06"], CASES["codec_05"]
LATER_S = time.monotonic() + 3600
"""A deadline of somebody who has time."""


@pytest.fixture
def start(checkpoint):
    """Options → an engine on the golden checkpoint."""
    return lambda **options: Code2WavEngine(checkpoint, Code2WavOptions(**options))


def test_streams_of_any_length_and_age_are_heard_as_if_alone(start):
    ear = speak_all(start(slots=9, max_chunk_frames=8, max_batch_frames=24))
    assert sorted(ear.ended) == list(range(len(CASES)))
    assert max(len(step) for step in ear.steps) > 2
    for key, case in enumerate(CASES.values()):
        assert_heard(ear.heard[key], case)


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="weights are laid out on x86 alone"
)
def test_weights_of_every_shape_of_a_step_lie_ready_before_the_first_request(start, monkeypatch):
    ear = Ear(start(max_chunk_frames=4, max_batch_frames=4))
    convolve = mock.Mock(wraps=layers.ONEDNN._convolution_pointwise)
    monkeypatch.setattr(layers, "ONEDNN", SimpleNamespace(_convolution_pointwise=convolve))  # it can lay out no more
    shapes = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 4)]
    for streams, frames in shapes:
        for key in range(streams):
            ear.engine.accept(decode(key, LONG.codes[:frames], last=True))
        ear.run()
    assert [(len(step), step[0][1]) for step in ear.steps] == shapes
    assert convolve.called


def test_chunk_is_the_largest_that_the_most_urgent_stream_can_give(start):
    ear = Ear(start(max_chunk_frames=8, max_batch_frames=64))
    ear.engine.accept(decode(1, MIDDLE.codes[:15], last=True))
    ear.run()
    assert ear.steps == [[(1, 8)], [(1, 4)], [(1, 2)], [(1, 1)]]


def test_streams_that_can_give_a_longer_chunk_wait_for_a_step_of_their_own(start):
    ear = Ear(start(max_chunk_frames=8, max_batch_frames=64))
    for key, frames, order in ((1, 5, 3), (2, 2, 1), (3, 1, 2), (4, 3, 4), (5, 1, 5)):
        ear.engine.accept(decode(key, LONG.codes[:frames], deadline_s=LATER_S + order))
    ear.run()
    assert ear.steps == [[(2, 2), (4, 2)], [(3, 1), (4, 1), (5, 1)], [(1, 4)], [(1, 1)]]


def test_first_frame_of_a_new_stream_does_not_wait_for_long_chunks(start):
    ear = Ear(start(max_chunk_frames=8, max_batch_frames=16))
    for key in (1, 2, 3):
        ear.engine.accept(decode(key, LONG.codes[:8], deadline_s=LATER_S + key))
    ear.step()
    ear.engine.accept(decode(4, LONG.codes[:1], deadline_s=LATER_S))
    ear.step()
    assert ear.steps[-1] == [(4, 1)]


def test_most_urgent_go_first_when_a_step_cannot_hold_all(start):
    ear = Ear(start(max_chunk_frames=4, max_batch_frames=8))
    for key, order in ((1, 4), (2, 1), (3, 3), (4, 2)):
        ear.engine.accept(decode(key, LONG.codes[:4], deadline_s=LATER_S + order))
    ear.run()
    assert ear.steps == [[(2, 4), (4, 4)], [(3, 4), (1, 4)]]


def test_those_about_to_run_dry_share_a_step_and_nobody_who_has_time_makes_it_longer(start):
    ear = Ear(start(max_chunk_frames=8, max_batch_frames=16))
    soon_s = time.monotonic() + URGENT_S / 2
    for key, frames, deadline_s in ((1, 8, soon_s), (2, 3, soon_s + 0.01), (3, 2, LATER_S), (4, 8, LATER_S)):
        ear.engine.accept(decode(key, LONG.codes[:frames], deadline_s=deadline_s))
    ear.step()
    assert ear.steps == [[(1, URGENT_FRAMES), (2, URGENT_FRAMES)]]


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


def test_deadline_is_that_of_the_latest_frames(start):
    ear = Ear(start(max_batch_frames=1))
    ear.engine.accept(decode(1, LONG.codes[:1], deadline_s=1.0))
    ear.engine.accept(decode(2, LONG.codes[:1], deadline_s=2.0))
    ear.engine.accept(decode(1, LONG.codes[1:2], deadline_s=3.0))
    ear.run()
    assert ear.steps == [[(2, 1)], [(1, 1)], [(1, 1)]]


@pytest.mark.parametrize(("largest", "sizes"), [(1, [1]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_chunk_sizes_are_powers_of_two_and_the_largest(largest, sizes):
    assert chunk_sizes(largest) == sizes


def test_last_without_codes_ends_a_stream_that_is_decoded_already(start):
    ear = Ear(start())
    ear.engine.accept(decode(1, SHORT.codes))
    ear.run()
    assert ear.ended == []
    ear.engine.accept(decode(1, [], last=True))
    assert ear.engine.has_work()
    event = ear.step()
    assert (event.keys, event.ended, event.samples) == ([], [1], b"")
    assert not ear.engine.has_work()
    assert_heard(ear.heard[1], SHORT)


def test_last_without_codes_waits_for_the_frames_before_it(start):
    ear = Ear(start(max_batch_frames=4))
    ear.engine.accept(decode(1, SHORT.codes))
    ear.engine.accept(decode(1, [], last=True))
    ear.run()
    assert ear.ended == [1]
    assert_heard(ear.heard[1], SHORT)


def test_end_comes_with_the_final_samples(start):
    ear = Ear(start(max_chunk_frames=8, max_batch_frames=8))
    ear.engine.accept(decode(1, SHORT.codes, last=True))
    assert ear.step().ended == []
    assert ear.step().ended == [1]
    assert not ear.engine.has_work()


def test_abort_frees_the_slot_at_once_and_the_next_stream_hears_nothing_of_it(start):
    ear = Ear(start(slots=1, max_batch_frames=4))
    ear.engine.accept(decode(1, LONG.codes))
    ear.step()
    ear.engine.accept(Abort([1]))
    assert not ear.engine.has_work()
    ear.engine.accept(decode(2, SHORT.codes, last=True))
    ear.run()
    assert ear.ended == [2]
    assert_heard(ear.heard[2], SHORT)


def test_abort_of_one_leaves_the_others_alone(start):
    ear = Ear(start(max_batch_frames=8))
    for key, case in ((1, LONG), (2, MIDDLE), (3, SHORT)):
        ear.engine.accept(decode(key, case.codes, last=True))
    ear.step()
    ear.engine.accept(Abort([1, 3]))
    ear.run()
    assert ear.ended == [2]
    assert_heard(ear.heard[2], MIDDLE)


def test_abort_of_unknown_keys_is_ignored(start):
    engine = start()
    engine.accept(Abort([7, 8]))
    assert not engine.has_work()


def test_slots_are_used_again_and_again(start):
    ear = Ear(start(slots=2))
    for key in range(7):
        ear.engine.accept(decode(key, SHORT.codes, last=True))
        ear.run()
        assert_heard(ear.heard[key], SHORT)


def refuse(engine, command, match):
    with pytest.raises(RequestError, match=match):
        engine.accept(command)


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (b"\0" * 31, "31 bytes"),
        (np.full((2, 16), 64, "<i2").tobytes(), r"code 64 is not in 0 … 63"),
        (np.full((1, 16), -1, "<i2").tobytes(), r"code -1 is not in 0 … 63"),
    ],
)
def test_bad_codes_close_their_stream_and_no_other(start, codes, told):
    ear = Ear(start(slots=2))
    ear.engine.accept(decode(1, SHORT.codes))
    ear.engine.accept(decode(2, MIDDLE.codes))
    refuse(ear.engine, Decode(2, codes, False, 0.0), told)
    refuse(ear.engine, Decode(3, codes, False, 0.0), told)
    ear.engine.accept(decode(1, [], last=True))
    ear.engine.accept(decode(4, SHORT.codes, last=True))
    ear.run()
    assert sorted(ear.ended) == [1, 4]
    assert 2 not in ear.heard
    assert_heard(ear.heard[1], SHORT)
    assert_heard(ear.heard[4], SHORT)


def test_engine_without_streams_has_no_work_and_says_nothing(start):
    engine = start()
    assert not engine.has_work()
    assert engine.step() is None
    engine.accept(decode(1, []))
    assert not engine.has_work()


def test_bfloat16_sounds_like_float32(start):
    ear = Ear(start(dtype="bfloat16"))
    ear.engine.accept(decode(1, LONG.codes, last=True))
    samples = ear.run().heard[1] / 32_767
    noise = np.square(samples - LONG.wav).mean() / np.square(LONG.wav).mean()
    assert 10 * np.log10(noise) < -20


class DelayedDecoder:
    """A device that works on two launches at once: each sample is the first code of its frame, once it is read."""

    ahead = 1

    def __init__(self):
        self.launches = []
        self.calls = []

    def choose(self, pending, most_frames, urgent):
        return [min(frames, max(0, most_frames - sum(pending[:at]))) for at, frames in enumerate(pending)]

    def launch(self, slots, positions, codes):
        self.calls.append(("launch", slots, positions, [chunk[:, 0].tolist() for chunk in codes]))
        self.launches.append(np.repeat(np.concatenate(codes)[:, 0], SAMPLES_PER_FRAME))
        assert len(self.launches) <= self.ahead + 1

    def read(self):
        self.calls.append(("read",))
        return self.launches.pop(0)


@pytest.fixture
def delayed(checkpoint):
    """Options → (a DelayedDecoder, an Ear on an engine that uses it)."""

    def start(**options):
        decoder = DelayedDecoder()
        return decoder, Ear(Code2WavEngine(checkpoint, Code2WavOptions(**options), decoder))

    return start


def frames(*first_codes):
    return np.repeat(np.array(first_codes)[:, None], 16, axis=1)


def heard_codes(ear, key):
    return ear.heard[key][::SAMPLES_PER_FRAME].tolist()


def test_next_step_is_launched_before_the_last_one_is_read(delayed):
    decoder, ear = delayed(max_batch_frames=1)
    ear.engine.accept(decode(1, frames(5, 6, 7), last=True))
    assert ear.engine.step() is None
    assert [ear.step().ended for _ in range(3)] == [[], [], [1]]
    assert not ear.engine.has_work()
    assert [call[0] for call in decoder.calls] == ["launch", "launch", "read", "launch", "read", "read"]
    assert [call[2] for call in decoder.calls if call[0] == "launch"] == [[0], [1], [2]]
    assert heard_codes(ear, 1) == [5, 6, 7]


def test_end_that_comes_late_waits_for_the_samples_under_way(delayed):
    _, ear = delayed()
    ear.engine.accept(decode(1, frames(5)))
    assert ear.engine.step() is None
    ear.engine.accept(decode(1, [], last=True))
    assert ear.step().ended == [1]
    assert heard_codes(ear, 1) == [5]


def test_nothing_is_said_of_a_stream_that_was_aborted_under_way(delayed):
    _, ear = delayed()
    for key in (1, 2, 3):
        ear.engine.accept(decode(key, frames(10 + key), last=True))
    assert ear.engine.step() is None
    ear.engine.accept(Abort([2]))
    event = ear.step()
    assert (event.keys, event.ended, event.batch) == ([1, 3], [1, 3], 2)
    assert (heard_codes(ear, 1), heard_codes(ear, 3)) == ([11], [13])
    assert not ear.engine.has_work()


def test_step_whose_streams_were_all_aborted_says_nothing(delayed):
    _, ear = delayed()
    ear.engine.accept(decode(1, frames(5), last=True))
    assert ear.engine.step() is None
    ear.engine.accept(Abort([1]))
    assert ear.engine.has_work()
    assert ear.engine.step() is None
    assert not ear.engine.has_work()


def test_slot_of_an_aborted_stream_begins_anew_while_its_last_launch_is_under_way(delayed):
    decoder, ear = delayed(slots=1)
    ear.engine.accept(decode(1, frames(5, 6)))
    assert ear.engine.step() is None
    ear.engine.accept(Abort([1]))
    ear.engine.accept(decode(2, frames(7), last=True))
    ear.run()
    assert decoder.calls == [("launch", [0], [0], [[5, 6]]), ("launch", [0], [0], [[7]]), ("read",), ("read",)]
    assert ear.steps == [[(2, 1)]]
    assert heard_codes(ear, 2) == [7]


def test_step_with_first_frames_of_a_stream_is_short(delayed):
    decoder, ear = delayed(slots=20, max_batch_frames=128)
    for key in range(1, 10):
        ear.engine.accept(decode(key, frames(*range(16)), deadline_s=float(key)))
    ear.run()
    ear.engine.accept(decode(10, frames(1), deadline_s=0.0))
    for key in range(1, 10):
        ear.engine.accept(decode(key, frames(*range(16)), deadline_s=float(key)))
    ear.run()
    launched = [sum(map(len, call[3])) for call in decoder.calls if call[0] == "launch"]
    assert launched == [FIRST_BATCH_FRAMES, FIRST_BATCH_FRAMES, 16, FIRST_BATCH_FRAMES, 1 + 9 * 16 - FIRST_BATCH_FRAMES]
    assert ear.steps[3][0] == (10, 1)


@pytest.fixture
def clock(monkeypatch):
    """One that moves by next to nothing, unless the test moves it."""

    class Clock:
        now_s = 100.0

        def __call__(self):
            self.now_s += 1e-6
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_engine_rests_between_steps_and_decodes_what_came_meanwhile(delayed, clock):
    decoder, ear = delayed(slots=2, max_batch_frames=8, step_interval_ms=1000)
    assert ear.engine.rest_s() == 0
    ear.engine.accept(decode(1, frames(5)))
    assert ear.engine.step() is None
    ear.engine.accept(decode(1, frames(6), last=True))
    assert ear.engine.rest_s() == 0, "there are samples to read"
    clock.now_s += 0.25
    ear.step()
    assert heard_codes(ear, 1) == [5]
    assert ear.engine.rest_s() == pytest.approx(0.75, rel=1e-3)
    assert ear.step() is None
    ear.engine.accept(decode(2, frames(7), last=True))
    clock.now_s += 0.7495  # worker channels wait no shorter than a millisecond
    ear.run()
    assert [call[3] for call in decoder.calls if call[0] == "launch"] == [[[5]], [[6], [7]]]
    assert (heard_codes(ear, 1), heard_codes(ear, 2)) == ([5, 6], [7])


def test_stream_that_only_needs_to_be_ended_waits_for_no_step_and_makes_none_early(delayed, clock):
    decoder, ear = delayed(slots=4, step_interval_ms=1000)
    for key in (1, 2):
        ear.engine.accept(decode(key, frames(5)))
    assert ear.step() is None
    clock.now_s += 0.1
    ear.step()
    ear.engine.accept(decode(2, frames(6)))
    ear.engine.accept(decode(1, [], last=True))
    assert ear.engine.rest_s() == 0
    assert ear.step().ended == [1]
    assert ear.engine.rest_s() == pytest.approx(0.9, rel=1e-3)
    assert [call[0] for call in decoder.calls] == ["launch", "read"]


@pytest.mark.parametrize(("streams", "share"), [(1, 0.2), (5, 1), (9, 1)])
def test_interval_is_shorter_while_most_slots_are_free(delayed, clock, streams, share):
    _, ear = delayed(slots=10, max_batch_frames=16, step_interval_ms=1000)
    for key in range(streams):
        ear.engine.accept(decode(key, frames(5)))
    assert ear.engine.step() is None
    clock.now_s += 0.125
    ear.step()
    assert ear.engine.rest_s() == pytest.approx(share - 0.125, rel=1e-3)


def test_floats_become_int16_clamped_and_rounded_to_nearest():
    steps = torch.tensor([0.0, 0.4, 0.6, -0.4, -0.6, 1000.4])
    assert to_int16(steps / 32_767).tolist() == [0, 0, 1, 0, -1, 1000]
    assert to_int16(torch.tensor([1.0, -1.0, 1.5, -7.0])).tolist() == [32_767, -32_767, 32_767, -32_767]
    assert to_int16(torch.tensor([0.5], dtype=torch.bfloat16)).tolist() == [16_384]
