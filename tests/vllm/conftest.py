"""One engine at a time, on the GPU if there is one, else on the CPU through Triton's interpreter."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.pipeline import TalkerOptions, VllmOptions

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

if not torch.cuda.is_available() and not collect_ignore_glob:
    from .interpreted import install

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what vLLM's imports warn of is not ours to mend
        install()


@contextmanager
def started(directory: Path, **settings) -> Iterator:
    """A float32 engine of a golden checkpoint with 16 slots, closed at the end. `settings` are VllmOptions."""
    from duotone.stages.talker.vllm_start import start_vllm_talker

    device = "cuda" if torch.cuda.is_available() else "cpu"
    vllm = VllmOptions(enforce_eager=True, gpu_memory_utilization=0.3, block_size=32, **settings)
    options = TalkerOptions(engine="vllm", device=device, slots=16, max_positions=256, vllm=vllm)
    engine = start_vllm_talker(read_checkpoint(directory), options)
    try:
        yield engine
    finally:
        engine.close()
