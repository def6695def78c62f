"""Model Runner V2 on a machine without a GPU: Triton's interpreter runs its kernels. For functional tests alone.

Five mends, for vLLM 0.29 and Triton 3.6 to 3.9. Call `install` before anything imports vllm.
"""

import os
import sys
import types

import numpy as np

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def install() -> None:
    """Make the runner's kernels run on this CPU. Changes this process's environment and modules."""
    assert "vllm.triton_utils" not in sys.modules, "vllm was imported before its mends"
    os.environ.update(ENVIRONMENT)
    _claim_triton()
    _mend_sampling()
    _mend_argmax()
    _keep_async_scheduling()


def _claim_triton() -> None:
    """vLLM believes in Triton only where it finds a GPU driver."""
    importing = types.ModuleType("vllm.triton_utils.importing")
    placeholder = type("Placeholder", (types.ModuleType,), {"__init__": lambda self: super().__init__("unused")})
    vars(importing).update(HAS_TRITON=True, TritonPlaceholder=placeholder, TritonLanguagePlaceholder=placeholder)
    sys.modules["vllm.triton_utils.importing"] = importing


def _mend_sampling() -> None:
    """The interpreter runs neither the top-k kernel, for which vLLM has a PyTorch twin, nor an external log1p."""
    import vllm.v1.sample.ops.topk_topp_sampler as sampler
    from vllm.triton_utils import tl, tldevice

    sampler.HAS_TRITON = False
    tldevice.log1p = lambda x: tl.log(1.0 + x.to(tl.float64)).to(x.dtype)


def _mend_argmax() -> None:
    """The warm-up samples from attention that nothing computed: a row of NaN must not raise."""
    from triton.runtime.interpreter import ReduceOps

    min_max = ReduceOps.min_max

    def argmax(x: np.ndarray, axis: int, keepdims: bool) -> np.ndarray:
        return np.argmax(np.where(np.isnan(x), -np.inf, x), axis=axis, keepdims=keepdims)

    def patched(self, values, val_reduce_op, idx_reduce_op=None):
        return min_max(self, values, val_reduce_op, argmax if idx_reduce_op is np.nanargmax else idx_reduce_op)

    ReduceOps.min_max = patched


def _keep_async_scheduling() -> None:
    """vLLM turns it off on CPUs, where it gains nothing; what it does to requests is worth testing."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def patched(vllm_config) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = staticmethod(patched)
