"""Engines on golden checkpoints, golden cases as requests, and driving the one with the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.engine import Engine
from duotone.stages.messages import Frames, Speak
from duotone.stages.pipeline import TalkerOptions, VllmOptions
from duotone.stages.talker.prompt import Reference, Transcript
from duotone.stages.talker.tokenizer import Tokenizer
from duotone.stages.talker.vllm_start import start_vllm_talker
from duotone.stages.types import PromptPlan, Sampling

from ..golden_outputs import GOLDEN, GREEDY, Spoken, spoken_cases

Codes = npt.NDArray[np.int16]


@contextmanager
def started(
    kind: Path, dtype: Literal["float32", "bfloat16"] = "float32", enforce_eager: bool = True, **settings: Any
) -> Iterator[Engine]:
    """An engine with 16 slots on the checkpoint of a folder under tests/golden. `settings` are further VllmOptions."""
    vllm = VllmOptions(enforce_eager=enforce_eager, block_size=32, **settings)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = TalkerOptions(engine="vllm", devices=device, dtype=dtype, slots=16, max_positions=256, vllm=vllm)
    engine = start_vllm_talker(read_checkpoint(kind / "checkpoint"), options)
    try:
        yield engine
    finally:
        engine.close()


@dataclass(frozen=True)
class GoldenCase:
    """A request of the reference and the codes that it got, int16 [frames, 16]."""

    plan: PromptPlan
    sampling: Sampling
    codes: Codes


def golden_cases(kind: Path) -> list[GoldenCase]:
    """The text cases of a folder under tests/golden."""
    checkpoint = read_checkpoint(kind / "checkpoint")
    tokenizer = Tokenizer(checkpoint)
    return [
        GoldenCase(
            case.plan(checkpoint, tokenizer, reference(case) if checkpoint.clones else None), case.sampling, case.codes
        )
        for case in spoken_cases(kind.name)
    ]


def reference(case: Spoken) -> Reference:
    """The recording of a `base` case, as the reference's encoders made it."""
    number = case.ref_audio.removeprefix("ref_").removesuffix(".npy")
    with np.load(GOLDEN / "base" / "references.npz") as heard:
        transcript = Transcript(case.ref_text, heard[f"codes_{number}"])
        return Reference(heard[f"x_vector_{number}"], None if case.x_vector_only else transcript)


@dataclass
class Talk:
    """What came out of an engine: codes by request key, reasons of those that ended, steps taken."""

    frames: dict[int, list[Codes]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    steps: int = 0

    def codes(self, key: int) -> Codes:
        """Int16 [frames, 16]."""
        return np.array(self.frames.get(key, []), np.int16).reshape(-1, 16)


def talk(
    engine: Engine,
    requests: Mapping[int, Speak],
    joins: Callable[[int], int] = lambda key: 0,
    each_step: Callable[[Talk], None] = lambda talk: None,
) -> Talk:
    """Speak all requests, each before the step that `joins` gives for its key, until the engine has nothing to do."""
    waiting = sorted(requests, key=joins)
    result = Talk()
    while waiting or engine.has_work():
        while waiting and (joins(waiting[0]) <= result.steps or not engine.has_work()):
            engine.accept(requests[waiting.pop(0)])
        event = engine.step()
        result.steps += 1
        if event is not None:
            assert isinstance(event, Frames)
            for key, codes in zip(event.keys, np.frombuffer(event.codes, "<i2").reshape(-1, 16), strict=True):
                assert key not in result.reasons, "a frame behind the end"
                result.frames.setdefault(key, []).append(codes)
            result.reasons |= {ended.key: ended.reason for ended in event.ended}
        each_step(result)
    return result


def speak(key: int, case: GoldenCase) -> Speak:
    """The golden request under a key of the caller's."""
    return Speak(key, case.plan, case.sampling)


def assert_golden(result: Talk, cases: Sequence[GoldenCase]) -> None:
    """The request of key i got the codes of case i, and ended as it did."""
    for key, case in enumerate(cases):
        np.testing.assert_array_equal(result.codes(key), case.codes, err_msg=f"case {key}")
        assert result.reasons[key] == ("length" if len(case.codes) == GREEDY.max_new_frames else "stop")
