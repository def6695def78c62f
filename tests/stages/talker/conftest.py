"""The golden checkpoints, as the API process and the engine read them."""

import pytest
import torch

from duotone.stages.checkpoint import Checkpoint, read_checkpoint
from duotone.stages.talker.tokenizer import Tokenizer

from ...golden_outputs import CUSTOM_VOICE, VOICE_DESIGN


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def custom_voice() -> Checkpoint:
    return read_checkpoint(CUSTOM_VOICE)


@pytest.fixture(scope="session")
def voice_design() -> Checkpoint:
    return read_checkpoint(VOICE_DESIGN)


@pytest.fixture(scope="session")
def tokenizer(custom_voice) -> Tokenizer:
    """The golden checkpoints share one."""
    return Tokenizer(custom_voice)
