"""The golden checkpoint's decoder, as it decodes."""

import pytest
import torch

from duotone.stages.checkpoint import Checkpoint, read_checkpoint
from duotone.stages.code2wav.decoder import load_decoder

from ...golden_outputs import CUSTOM_VOICE


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return read_checkpoint(CUSTOM_VOICE)


@pytest.fixture(scope="session")
def load(checkpoint):
    """dtype → the frozen decoder in it."""
    return lambda dtype: load_decoder(checkpoint.codec, checkpoint.codec_weights, dtype, "cpu")
