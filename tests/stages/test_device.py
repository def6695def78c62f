"""A worker sees its own GPU alone, and says which device is missing or too small."""

import os

import pytest
import torch
from pydantic import ValidationError

from duotone.stages.device import claimed
from duotone.stages.errors import ConfigurationError
from duotone.stages.pipeline import Code2WavOptions

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that PyTorch sees a GPU whenever the process may see any."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(os.environ[VISIBLE]))
    monkeypatch.setenv(VISIBLE, "")
    return lambda visible: monkeypatch.setenv(VISIBLE, visible) if visible else monkeypatch.delenv(VISIBLE)


@pytest.mark.parametrize(
    ("inherited", "device", "seen"),
    [
        (None, "cuda:1", "1"),
        ("2,5", "cuda:0", "2"),
        ("2,5", "cuda:1", "5"),
        ("GPU-8c1d,GPU-77f0", "cuda:1", "GPU-77f0"),
    ],
)
def test_the_index_counts_what_the_server_may_see_and_the_worker_sees_that_one_alone(gpus, inherited, device, seen):
    gpus(inherited)
    with claimed(device):
        assert os.environ[VISIBLE] == seen


def test_a_device_that_is_not_there_is_named(gpus):
    gpus("2,5")
    with pytest.raises(ConfigurationError, match=r"devices: cuda:2: PyTorch sees no such GPU"), claimed("cuda:2"):
        pytest.fail("started on a GPU that is not there")


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_device_without_enough_memory_is_named(gpus, kind):
    gpus("2,5")
    with (
        pytest.raises(ConfigurationError, match=r"devices: cuda:1 has not enough memory: CUDA out of memory"),
        claimed("cuda:1"),
    ):
        raise kind("CUDA out of memory")


def test_another_failure_of_a_device_is_passed_on(gpus):
    gpus("2,5")
    with pytest.raises(torch.AcceleratorError), claimed("cuda:1"):
        raise torch.AcceleratorError("an illegal memory access was encountered")


def test_a_cpu_needs_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with claimed("cpu"):
        assert Code2WavOptions().device == "cpu"


def test_devices_are_listed_named_alone_or_refused():
    assert Code2WavOptions(devices=["cuda:1", "cuda:1"]).devices == ("cuda:1", "cuda:1")
    assert Code2WavOptions(devices="cuda").devices == ("cuda:0",)
    for wrong in ([], ["gpu"], ["cuda:"], "cuda:0,cuda:1"):
        with pytest.raises(ValidationError):
            Code2WavOptions(devices=wrong)
