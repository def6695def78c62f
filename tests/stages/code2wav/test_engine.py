"""The engine shares its steps among streams without any of them hearing it, and survives whatever it is told."""

import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from duotone.stages.code2wav import layers
from duotone.stages.code2wav.chunks import URGENT_FRAMES
from duotone.stages.code2wav.engine import URGENT_S, Code2WavEngine
from duotone.stages.errors import RequestError
from duotone.stages.messages import Abort, Decode
from duotone.stages.pipeline import Code2WavOptions

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


def test_deadline_is_that_of_the_latest_frames(start):
    ear = Ear(start(max_batch_frames=1))
    ear.engine.accept(decode(1, LONG.codes[:1], deadline_s=1.0))
    ear.engine.accept(decode(2, LONG.codes[:1], deadline_s=2.0))
    ear.engine.accept(decode(1, LONG.codes[1:2], deadline_s=3.0))
    ear.run()
    assert ear.steps == [[(2, 1)], [(1, 1)], [(1, 1)]]


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
