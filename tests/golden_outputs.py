"""Access to tests/golden: the reference's outputs and the checkpoints that they come from."""

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from duotone.stages.checkpoint import Checkpoint
from duotone.stages.talker.prompt import Reference, build_plan
from duotone.stages.talker.tokenizer import Tokenizer
from duotone.stages.types import PromptPlan, Sampling

GOLDEN = Path(__file__).parent / "golden"
CUSTOM_VOICE = GOLDEN / "custom_voice" / "checkpoint"
VOICE_DESIGN = GOLDEN / "voice_design" / "checkpoint"
BASE = GOLDEN / "base" / "checkpoint"
GREEDY = Sampling(seed=0, temperature=0.0, subtalker_temperature=0.0, repetition_penalty=1.0, max_new_frames=23)
"""How the reference spoke: 24 new tokens, the last of which is no frame."""


@dataclass(frozen=True)
class Case:
    """`codes` int64 [frames, 16] and, where the case holds it, `wav` float32 [frames · 1920]."""

    name: str
    codes: npt.NDArray[np.int64]
    wav: npt.NDArray[np.float32]


class Spoken(msgspec.Struct, frozen=True):
    """A text that the reference spoke, greedily."""

    name: str
    text: str
    language: str
    non_streaming_mode: bool
    repetition_penalty: float
    speaker: str | None = None
    instruct: str | None = None
    ref_audio: str = ""
    ref_text: str = ""
    x_vector_only: bool = False

    @property
    def codes(self) -> npt.NDArray[np.int16]:
        """[frames, 16]."""
        with np.load(GOLDEN / self.name[:-3] / f"{self.name}.npz") as arrays:
            return arrays["codes"].astype(np.int16)

    @property
    def sampling(self) -> Sampling:
        return msgspec.structs.replace(GREEDY, repetition_penalty=self.repetition_penalty)

    def plan(self, checkpoint: Checkpoint, tokenizer: Tokenizer, reference: Reference | None = None) -> PromptPlan:
        return build_plan(
            checkpoint,
            tokenizer,
            self.text,
            language=self.language.lower(),
            speaker=self.speaker and self.speaker.lower(),
            instruction=self.instruct,
            non_streaming=self.non_streaming_mode,
            reference=reference,
        )


def spoken_cases(kind: str) -> list[Spoken]:
    """The text → codes cases of a kind of checkpoint."""
    cases = json.loads((GOLDEN / kind / "cases.json").read_text())["cases"]
    return [msgspec.convert(case, Spoken) for case in cases if "text" in case]


def codec_cases() -> list[Case]:
    """The codes → waveform cases, and the waveforms of whole requests."""
    folder = GOLDEN / "custom_voice"
    names = [case["name"] for case in json.loads((folder / "cases.json").read_text())["cases"]]
    return [load_case(folder / f"{name}.npz") for name in names]


def load_case(file: Path) -> Case:
    with np.load(file) as arrays:
        return Case(file.stem, arrays["codes"].astype(np.int64), arrays["wav"])


def recording(name: str) -> npt.NDArray[np.float32]:
    """A voice that a `base` case clones, [samples] at 24 kHz."""
    samples: npt.NDArray[np.float32] = np.load(GOLDEN / "base" / name)
    return samples
