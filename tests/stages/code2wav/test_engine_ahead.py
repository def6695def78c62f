"""The engine launches steps before it reads the last ones, and rests between steps."""

import time

import numpy as np
import pytest

from duotone.stages.code2wav.engine import FIRST_BATCH_FRAMES, Code2WavEngine
from duotone.stages.messages import Abort
from duotone.stages.pipeline import Code2WavOptions
from duotone.stages.types import SAMPLES_PER_FRAME

from .hearing import Ear, decode


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
