"""The device that a worker computes on: the only GPU that its process sees."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .errors import ConfigurationError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def claimed(device: str) -> Iterator[None]:
    """Start an engine on a device (`cpu`, `cuda:1`) within the block, before anything else has used a GPU.

    Other GPUs are hidden from the process for good: whatever library computes in it, it lands on the right one, under
    the name `cuda`. Raises ConfigurationError for a device that is not there, or whose memory does not suffice.
    """
    if device != "cpu":
        os.environ[_VISIBLE] = _narrowed(os.environ.get(_VISIBLE), int(device.partition(":")[2]))
        if not torch.cuda.is_available():
            raise ConfigurationError(f"devices: {device}: PyTorch sees no such GPU here")
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
        if "out of memory" not in str(error):
            raise
        raise ConfigurationError(f"devices: {device} has not enough memory: {error}") from None


def settle() -> None:
    """An engine has started: give back the memory that took, and let no later collection visit what is here to stay."""
    gc.collect()
    gc.freeze()
    torch.cuda.empty_cache()


def _narrowed(visible: str | None, index: int) -> str:
    """What makes one GPU of those that are visible the only one; nothing, where there are not so many."""
    if visible is None:
        return str(index)
    names = visible.split(",")
    return names[index] if index < len(names) else ""
