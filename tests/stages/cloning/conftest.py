"""The golden `base` checkpoint and its recordings."""

import numpy as np
import pytest
import torch

from duotone.stages.checkpoint import Checkpoint, read_checkpoint
from duotone.stages.cloning.worker import Encoders

from ...golden_outputs import BASE, recording
from .recordings import stored


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base() -> Checkpoint:
    return read_checkpoint(BASE)


@pytest.fixture(scope="session")
def encoders(base) -> Encoders:
    return Encoders(base)


@pytest.fixture
def voice() -> np.ndarray:
    """A second of somebody, float32 at 24 kHz."""
    return recording("ref_0.npy")


@pytest.fixture
def wav(voice) -> bytes:
    return stored(voice)
