"""What must happen before vllm is imported: refusals, and the settings that it takes from the environment alone."""

import importlib.util
import os

from ..checkpoint import Checkpoint
from ..engine import Engine
from ..errors import ConfigurationError
from ..pipeline import TalkerOptions


def start_vllm_talker(checkpoint: Checkpoint, options: TalkerOptions) -> Engine:
    """The Talker on vLLM, loaded, captured and warm. Raises ConfigurationError for what cannot work here.

    Writes to this process's environment: a worker's, which nothing else shares.
    """
    check(options)
    os.environ.update(environment(options))
    from .vllm_engine import VllmTalkerEngine

    try:
        return VllmTalkerEngine(checkpoint, options)
    except ValueError as error:  # how vLLM refuses settings, and a device without room for its cache
        raise ConfigurationError(f"talker.vllm: {error}") from error


def check(options: TalkerOptions) -> None:
    """Raise ConfigurationError for options that cannot work, before anything heavy is imported."""
    if options.vllm.tensor_parallel_size > 1:
        raise ConfigurationError(
            "talker.vllm.tensor_parallel_size: above 1 the model would leave the Talker's process; add replicas instead"
        )
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError("talker.engine: vllm is not installed here: pip install 'duotone[vllm]'")


def environment(options: TalkerOptions) -> dict[str, str]:
    """The variables that vLLM and Triton read, under their names."""
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1",  # the older runner would ignore our model state without a word
        "VLLM_BATCH_INVARIANT": str(int(options.vllm.batch_invariant)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "duotone",
    }
    if options.dtype == "float32":
        variables["TRITON_F32_DEFAULT"] = "ieee"  # Triton's products of float32 matrices are TF32 otherwise
    return variables
