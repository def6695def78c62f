"""Speaks to a Code2Wav engine as the worker's loop does, and keeps what it says."""

import math

import numpy as np

from duotone.stages.messages import Decode
from duotone.stages.types import SAMPLES_PER_FRAME

from ...golden_outputs import codec_cases

CASES = {case.name: case for case in codec_cases() if case.name.startswith("codec")}


def decode(key, codes, last=False, deadline_s=math.inf):
    return Decode(key, np.asarray(codes, "<i2").tobytes(), last, deadline_s)


class Ear:
    """Steps an engine and keeps what it says."""

    def __init__(self, engine):
        self.engine = engine
        self.heard = {}
        self.ended = []
        self.steps = []

    def step(self):
        event = self.engine.step()
        if event is None:
            return None
        samples = np.frombuffer(event.samples, "<i2")
        for key, frames in zip(event.keys, event.frames, strict=True):
            self.heard[key] = np.concatenate((self.heard.get(key, []), samples[: frames * SAMPLES_PER_FRAME]))
            samples = samples[frames * SAMPLES_PER_FRAME :]
        assert len(samples) == 0
        assert event.batch == len(event.keys)
        assert event.step_s > 0 or not event.keys
        self.ended += event.ended
        self.steps.append(list(zip(event.keys, event.frames, strict=True)))
        return event

    def run(self):
        while self.engine.has_work():
            self.step()
        return self


def assert_heard(samples, case):
    """Within one 16-bit step of the reference."""
    assert samples.shape == case.wav.shape
    assert np.abs(samples - case.wav * 32_767).max() <= 1


def speak_all(engine, seed=0):
    """The codec cases, each a stream under its number, in pieces of random lengths that arrive between steps."""
    ear, rng = Ear(engine), np.random.default_rng(seed)
    left = {key: case.codes for key, case in enumerate(CASES.values())}
    while left:
        for key in rng.permutation(list(left))[:3].tolist():
            frames = int(rng.integers(1, 12))
            engine.accept(decode(key, left[key][:frames], len(left[key]) <= frames, float(rng.random())))
            left[key] = left[key][frames:]
            if not len(left[key]):
                del left[key]
        if engine.has_work():
            ear.step()
    return ear.run()
