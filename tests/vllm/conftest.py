"""These tests run where vLLM is installed: on the GPU if there is one, else on the CPU through Triton's interpreter."""

import importlib.util
import warnings

import torch

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

if not torch.cuda.is_available() and not collect_ignore_glob:
    from .interpreted import install

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what vLLM's imports warn of is not ours to mend
        install()
