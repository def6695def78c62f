"""These tests need a GPU and vLLM."""

import importlib.util

import torch

collect_ignore_glob = [] if torch.cuda.is_available() and importlib.util.find_spec("vllm") else ["test_*.py"]
