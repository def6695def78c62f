"""The vLLM engine refuses what cannot work in one line, and vLLM gets its settings before it is imported."""

import importlib.util
import subprocess
import sys

import pytest

from duotone.stages.errors import ConfigurationError
from duotone.stages.pipeline import TalkerOptions, VllmOptions
from duotone.stages.talker.vllm_start import check, environment

GPU = TalkerOptions(engine="vllm", devices="cuda", dtype="bfloat16")


def test_tensor_parallelism_is_refused_with_the_way_out():
    options = GPU.model_copy(update={"vllm": VllmOptions(tensor_parallel_size=2)})
    with pytest.raises(ConfigurationError, match=r"tensor_parallel_size: .* add replicas"):
        check(options)


def test_a_machine_without_vllm_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"vllm is not installed here: pip install 'duotone\[vllm\]'"):
        check(GPU)


def test_float32_products_are_exact_and_batch_invariance_is_passed_on():
    plain = environment(GPU)
    assert plain["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert plain["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert plain["VLLM_BATCH_INVARIANT"] == "0"
    assert "TRITON_F32_DEFAULT" not in plain
    exact = environment(TalkerOptions(engine="vllm", dtype="float32", vllm=VllmOptions(batch_invariant=True)))
    assert exact["VLLM_BATCH_INVARIANT"] == "1"
    assert exact["TRITON_F32_DEFAULT"] == "ieee"


def test_the_start_itself_imports_no_vllm():
    code = "import sys, duotone.stages.talker.vllm_start; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
