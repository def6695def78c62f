"""Access to tests/golden: the reference's outputs and the checkpoints that they come from."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

GOLDEN = Path(__file__).parent / "golden"
CUSTOM_VOICE = GOLDEN / "custom_voice" / "checkpoint"
VOICE_DESIGN = GOLDEN / "voice_design" / "checkpoint"
BASE = GOLDEN / "base" / "checkpoint"


@dataclass(frozen=True)
class Case:
    """`codes` int64 [frames, 16] and, where the case holds it, `wav` float32 [frames · 1920]."""

    name: str
    codes: npt.NDArray[np.int64]
    wav: npt.NDArray[np.float32]


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
