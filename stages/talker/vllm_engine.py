"""The Talker's engine on stock vLLM: its core runs in this process, schedules, batches and owns the key/value cache.

A request's life: `accept` hands it to vLLM with placeholder ids for its prompt and a TalkerRequest in `extra_args`;
TalkerModelState embeds the plan and draws whole frames, whose codes 0 vLLM takes for its tokens; `step` returns the
frames whose code 0 vLLM has returned. vLLM's word is final: the step that asynchronous scheduling runs behind an eos
makes a frame that nobody asks for. The core is driven without vLLM's front end, which would make texts of codes.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from prometheus_client import REGISTRY
from torch.profiler import record_function
from vllm import EngineArgs, SamplingParams
from vllm.config import ProfilerConfig
from vllm.v1.engine import EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor.abstract import Executor
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import SchedulerStats

from ...profiling.metrics import exposed
from ...profiling.options import ProfilerOptions
from ...profiling.profiler import CudaProfiler, Profiler, vllm_profiler_config
from ..architecture import TalkerConfig
from ..checkpoint import Checkpoint
from ..engine import Engine
from ..messages import Abort, Ended, Frames, Speak, StageCommand
from ..pipeline import TalkerOptions
from ..types import CODEBOOKS, NO_CODE, PromptPlan, Sampling
from ..weights import shapes
from .model import PREFIX, Talker
from .pace import Pace
from .vllm_model import CONFIG_FORMAT, head_factor, register
from .vllm_scheduler import TalkerScheduler
from .vllm_state import REQUEST, Codes, TalkerModelState, TalkerRequest

_POSITIONS_PER_SLOT = 1024
"""Of the key/value cache: a prompt and more than a minute of speech. Where it is short, vLLM lets a request wait."""
_NEXT_TO_NOTHING = 0.01
"""The share of the GPU's memory that vLLM demands at its start, which means nothing once the cache's size is given."""
_PROMPT_POSITIONS = 512
"""Of a step, beside a frame of each slot: more would hold up those who talk."""
_MOST_CAPTURED = 1024
"""Positions of the largest step that is captured as a graph."""
_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class VllmTalkerEngine(Engine):
    """The Engine protocol over vLLM. Main thread of the process alone."""

    def __init__(self, checkpoint: Checkpoint, options: TalkerOptions) -> None:
        """Load, compile, capture and warm up: a minute on a GPU.

        Raises CheckpointError, and ValueError for settings that vLLM refuses.
        """
        with torch.device("meta"):
            checkpoint.weights.check(shapes(Talker(checkpoint.talker), PREFIX))
        register()
        config = engine_args(checkpoint, options).create_engine_config()
        self.slots = options.slots
        self._pad_id, self._eos_id = checkpoint.talker.codec_pad_id, checkpoint.talker.codec_eos_token_id
        self._requests: dict[str, TalkerRequest] = {}
        self._joined = False
        """Whether a request has come since the last step."""
        self._pace = Pace()
        self._core = InprocClient(config, Executor.get_class(config), log_stats=True)
        self._state: TalkerModelState = (
            self._core.engine_core.model_executor.driver_worker.worker.model_runner.model_state
        )
        self._metrics = PrometheusStatLogger(config, [0])
        self._scheduler_stats: SchedulerStats | None = None
        self._warm_up()

    def accept(self, command: StageCommand) -> None:
        """Hand a request to vLLM, or take some back. The orchestrator sends none without room for all its frames."""
        if isinstance(command, Abort):
            self._core.abort_requests([str(key) for key in command.keys if self._requests.pop(str(key), None)])
            return
        assert isinstance(command, Speak)
        request = TalkerRequest(command.key, command.plan, command.sampling)
        self._requests[str(command.key)] = request
        self._core.add_request(self._core_request(request))
        self._joined = True

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def rest_s(self) -> float:
        """Until the next step has to be planned."""
        return self._pace.rest_s(time.perf_counter())

    def step(self) -> Frames | None:
        """Let vLLM schedule a step, and return the frames of the one that has ended, which need not be the same."""
        start_s = time.perf_counter()
        with record_function("prefill" if self._joined else "decode"):
            made_now = self._core.get_output()
        self._joined = False
        self._scheduler_stats = made_now.scheduler_stats or self._scheduler_stats
        outputs = made_now.outputs
        keys: list[int] = []
        codes: list[Codes] = []
        ended: list[Ended] = []
        for output in outputs:
            request = self._requests[output.request_id]
            made = [request.accept_frame() for _ in output.new_token_ids]
            if output.finish_reason is not None:
                ended.append(Ended(request.key, _REASONS[output.finish_reason]))
                del self._requests[output.request_id]
            if output.finish_reason == FinishReason.STOP:
                made.pop()  # the frame that eos begins is not spoken
            keys += [request.key] * len(made)
            codes += made
        launched_s = self._state.launched_s if self._state.launched_s > start_s else None
        step_s = self._pace.ended(time.perf_counter(), start_s, launched_s)
        if not outputs:
            return None
        return Frames(keys, np.array(codes, "<i2").tobytes(), ended, batch=len(outputs), step_s=step_s)

    def close(self) -> None:
        """Stop vLLM's core and give the device back."""
        self._core.shutdown()

    def own_profiler(self, options: ProfilerOptions) -> Profiler | None:
        """The CUDA window is vLLM's to open, in its own worker; `torch` needs nothing of vLLM."""
        return CudaProfiler(options, _CoreWindow(self._core)) if options.profiler == "cuda" else None

    def exposition(self) -> str:
        """What vLLM's scheduler says of itself: requests running and waiting, use of the key/value cache."""
        if self._scheduler_stats is not None:
            self._metrics.record(self._scheduler_stats, None)
        return exposed(family for family in REGISTRY.collect() if family.name.startswith("vllm:"))

    def _core_request(self, request: TalkerRequest) -> EngineCoreRequest:
        return EngineCoreRequest(
            request_id=str(request.key),
            prompt_token_ids=[self._pad_id] * request.plan.positions,
            mm_features=None,
            # How codes are drawn is TalkerModelState's business.
            sampling_params=SamplingParams(
                max_tokens=request.sampling.max_new_frames,
                stop_token_ids=[self._eos_id],  # without a tokenizer vLLM knows no eos of its own
                detokenize=False,
                extra_args={REQUEST: request},
                skip_clone=True,  # the request must reach the model state itself, not a copy
            ),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def _warm_up(self) -> None:
        """Speak a little, so that what vLLM compiles at first use is compiled."""
        row = np.full(1 + CODEBOOKS, NO_CODE, "<i4")
        row[:2] = 0, self._pad_id
        self.accept(Speak(-1, PromptPlan(row.tobytes()), Sampling(0, min_new_frames=2, max_new_frames=2)))
        while self.has_work():
            self.step()


@dataclass(frozen=True)
class _CoreWindow:
    """vLLM's own CUDA profiler wrapper, as its core starts and stops it; vLLM counts its steps itself."""

    core: InprocClient

    @property
    def is_running(self) -> bool:
        """Looked up each time: vLLM makes the wrapper at the first start, and only logs a failure to start."""
        profiler = self.core.engine_core.model_executor.driver_worker.worker.profiler
        return profiler is not None and profiler.is_running

    def start(self) -> None:
        """Through the engine's profile call."""
        self.core.profile(True)

    def step(self) -> None:
        """vLLM's worker does that."""

    def stop(self) -> None:
        """Through the engine's profile call."""
        self.core.profile(False)


def engine_args(checkpoint: Checkpoint, options: TalkerOptions) -> EngineArgs:
    """vLLM's settings: the Talker's options, and what the model state depends on."""
    vllm = options.vllm
    positions = vllm.max_num_batched_tokens or options.slots + _PROMPT_POSITIONS
    return EngineArgs(
        model=str(checkpoint.directory),
        config_format=CONFIG_FORMAT,
        generation_config="vllm",
        skip_tokenizer_init=True,
        enable_prompt_embeds=True,  # else the runner never asks for input embeddings
        enable_prefix_caching=False,  # all prompts of a length look alike to it
        dtype=options.dtype,
        # FlashAttention, vLLM's choice, has no float32, and takes three times as long where many requests each ask for
        # one position.
        attention_backend="TRITON_ATTN" if options.device == "cuda" else None,
        max_num_seqs=options.slots,
        max_model_len=options.max_positions,
        max_num_batched_tokens=positions,
        gpu_memory_utilization=_NEXT_TO_NOTHING,
        kv_cache_memory_bytes=cache_bytes(checkpoint.talker, options),
        block_size=vllm.block_size,
        load_format=vllm.load_format,
        enforce_eager=vllm.enforce_eager,
        # Steps that prefill are one graph too: launched kernel by kernel they would cost the first sound 7 to 40 ms.
        compilation_config={
            "cudagraph_mode": "FULL",
            "max_cudagraph_capture_size": min(positions, _MOST_CAPTURED),
        },
        async_scheduling=True,
        scheduler_cls=TalkerScheduler,
        disable_log_stats=False,
        served_model_name="talker",
        profiler_config=_profiler_config(options),
    )


def cache_bytes(config: TalkerConfig, options: TalkerOptions) -> int:
    """What the key/value cache takes: keys and values of every layer at each position, in the model's dtype."""
    # Room for two of the longest at the least: vLLM keeps a block for itself.
    positions = options.vllm.cache_positions or max(options.slots * _POSITIONS_PER_SLOT, 2 * options.max_positions)
    value_bytes = 4 if options.dtype == "float32" else 2
    values = config.num_hidden_layers * config.num_key_value_heads * config.head_dim * head_factor(config)
    return positions * 2 * values * value_bytes


def _profiler_config(options: TalkerOptions) -> ProfilerConfig:
    """vLLM's, for the CUDA profiler alone."""
    ours = options.profiler_config
    return ProfilerConfig() if ours is None or ours.profiler == "torch" else vllm_profiler_config(ours)
