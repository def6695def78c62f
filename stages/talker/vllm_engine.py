"""The Talker's engine on stock vLLM: one LLMEngine in this process schedules, batches and owns the key/value cache.

A request's life: `accept` hands it to vLLM with placeholder ids for its prompt and a TalkerRequest in `extra_args`;
TalkerModelState embeds the plan and completes a frame behind each code 0 that vLLM samples; `step` returns the frames
whose code 0 vLLM has returned. vLLM's word is final: the step that asynchronous scheduling runs behind an eos makes a
frame that nobody asks for.
"""

import time

import numpy as np
from vllm import EngineArgs, SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.abstract import Executor

from ..checkpoint import Checkpoint
from ..engine import Engine
from ..errors import RequestError
from ..messages import Abort, Ended, Frames, Speak, StageCommand
from ..pipeline import TalkerOptions
from .vllm_model import CONFIG_FORMAT, register
from .vllm_state import REQUEST, Codes, TalkerRequest

_SEED_MASK = (1 << 63) - 1
"""vLLM keeps seeds as signed 64-bit integers, and a seed of -1 means none."""


class VllmTalkerEngine(Engine):
    """The Engine protocol over vLLM. Main thread of the worker alone."""

    def __init__(self, checkpoint: Checkpoint, options: TalkerOptions) -> None:
        register()
        config = engine_args(checkpoint, options).create_engine_config()
        self.slots = options.slots
        self._max_positions = options.max_positions
        self._pad_id, self._eos_id = checkpoint.talker.codec_pad_id, checkpoint.talker.codec_eos_token_id
        self._requests: dict[int, TalkerRequest] = {}
        self._engine = LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)

    def accept(self, command: StageCommand) -> None:
        """Hand a request to vLLM, or take some back. Raises RequestError for a prompt that leaves a frame no room."""
        if isinstance(command, Abort):
            known = [key for key in command.keys if self._requests.pop(key, None)]
            self._engine.abort_request([str(key) for key in known])
            return
        assert isinstance(command, Speak)
        if command.plan.positions >= self._max_positions:
            raise RequestError(
                f"the text takes {command.plan.positions} positions of the {self._max_positions} that a request has",
                "input",
            )
        request = TalkerRequest(command.key, command.plan, command.sampling)
        # Placeholders that are never sampled, so that counting them for the repetition penalty changes nothing.
        prompt = tokens_input([self._pad_id] * command.plan.positions)
        self._engine.add_request(str(command.key), prompt, self._parameters(request))
        self._requests[command.key] = request

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self._engine.has_unfinished_requests()

    def step(self) -> Frames | None:
        """Let vLLM schedule a step, and return the frames of the one that has ended, which need not be the same."""
        start_s = time.perf_counter()
        outputs = self._engine.step()
        keys: list[int] = []
        codes: list[Codes] = []
        ended: list[Ended] = []
        for output in outputs:
            assert isinstance(output, RequestOutput)
            key, completion = int(output.request_id), output.outputs[0]
            request = self._requests[key]
            made = [request.accept_frame() for _ in completion.token_ids]
            if completion.finish_reason is not None:
                ended.append(Ended(key, completion.finish_reason))
                del self._requests[key]
            if completion.finish_reason == "stop":
                made.pop()  # the frame that eos begins is not spoken
            keys += [key] * len(made)
            codes += made
        if not outputs:
            return None
        frames = np.array(codes, "<i2").tobytes()
        return Frames(keys, frames, ended, batch=len(outputs), step_s=time.perf_counter() - start_s)

    def close(self) -> None:
        """Stop vLLM's core and give the device back."""
        self._engine.engine_core.shutdown()

    def _parameters(self, request: TalkerRequest) -> SamplingParams:
        sampling = request.sampling
        return SamplingParams(
            seed=sampling.seed & _SEED_MASK,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            min_tokens=sampling.min_new_frames,
            max_tokens=sampling.max_new_frames,
            stop_token_ids=[self._eos_id],  # without a tokenizer vLLM knows no eos of its own
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={REQUEST: request},
            skip_clone=True,  # the request must reach the model state itself, not a copy
        )


def engine_args(checkpoint: Checkpoint, options: TalkerOptions) -> EngineArgs:
    """vLLM's settings: the Talker's options, and what the model state depends on."""
    vllm = options.vllm
    _, _, index = options.device.partition(":")
    return EngineArgs(
        model=str(checkpoint.directory),
        config_format=CONFIG_FORMAT,
        generation_config="vllm",
        skip_tokenizer_init=True,
        enable_prompt_embeds=True,  # else the runner never asks for input embeddings
        enable_prefix_caching=False,  # all prompts of a length look alike to it
        dtype=options.dtype,
        attention_backend="TRITON_ATTN" if _needs_triton_attention(options) else None,
        device_ids=[int(index)] if index else None,
        max_num_seqs=options.slots,
        max_model_len=options.max_positions,
        max_num_batched_tokens=vllm.max_num_batched_tokens,
        gpu_memory_utilization=vllm.gpu_memory_utilization,
        block_size=vllm.block_size,
        num_gpu_blocks_override=vllm.num_gpu_blocks,
        load_format=vllm.load_format,
        enforce_eager=vllm.enforce_eager,
        async_scheduling=vllm.async_scheduling,
        disable_log_stats=True,
    )


def _needs_triton_attention(options: TalkerOptions) -> bool:
    """FlashAttention, vLLM's choice, has no float32."""
    return options.device.startswith("cuda") and options.dtype == "float32"
