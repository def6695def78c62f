"""What Model Runner V2 calls at each step of the Talker: input embeddings before the backbone, whole frames after it.

The runner asks for the embeddings of the scheduled rows, runs the backbone and calls the sampler with the hidden
states that frames begin with; `FrameSampler` draws whole frames, and vLLM gets codes 0 as its tokens. Main thread of
the worker alone. Nothing here waits for the device: what the host must know (slots, frame numbers, who gets a frame)
follows from the schedule, and what the device makes is left on the way to pinned memory.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import record_function
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu.buffer_utils import async_copy_to_gpu
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

from ..types import CODEBOOKS, PromptPlan, Sampling
from .frame_kernel import fits, runs_on
from .frames import FrameMaker, NewFrames, PlainPredictor
from .kernels import FusedPredictor

if TYPE_CHECKING:
    from .vllm_model import TalkerForVllm

REQUEST = "duotone_request"
"""Key of `SamplingParams.extra_args` under which a TalkerRequest travels through vLLM, by reference."""

Codes = npt.NDArray[np.int16]


@dataclass(eq=False)
class TalkerRequest:
    """One request, shared between the engine and the model state: it outlives preemption, which empties vLLM's slot.

    Each frame is in `in_flight` from its step until vLLM returns its code 0, then in `codes`. vLLM returns a step's
    tokens when a copy that waits for ours is done, so the codes have arrived by then.
    """

    key: int
    plan: PromptPlan
    sampling: Sampling
    codes: list[Codes] = field(default_factory=list)
    """Int16 [16] each: the frames that vLLM has accepted, which a resumed request is rebuilt from."""
    in_flight: deque[tuple[Codes, int]] = field(default_factory=deque)
    """Of each frame not accepted yet, the step's codes in host memory, int16 [rows, 16], and its row there."""

    def accept_frame(self) -> Codes:
        """Move the oldest frame in flight to the accepted ones; int16 [16]. Call it when vLLM returns its code 0."""
        codes, row = self.in_flight.popleft()
        self.codes.append(codes[row].copy())
        return self.codes[-1]

    def text_id(self, frame: int, pad_id: int) -> int:
        """The text term that goes with a frame when it becomes the next input."""
        trailing = self.plan.trailing_text_ids
        return trailing[frame] if frame < len(trailing) else pad_id

    def input_ids(self, start: int, stop: int, pad_id: int) -> npt.NDArray[np.int32]:
        """Rows `start` to `stop` of prompt and accepted frames, laid out as a plan's: int32 [rows, 1 + CODEBOOKS]."""
        prompt = self.plan.row_ids()
        frames = range(max(start - len(prompt), 0), max(stop - len(prompt), 0))
        made = [np.concatenate(([self.text_id(frame, pad_id)], self.codes[frame])) for frame in frames]
        return np.concatenate([prompt[start:stop], np.array(made, np.int32).reshape(-1, 1 + CODEBOOKS)])


class TalkerModelState(DefaultModelState):
    """Knows what stands in vLLM's slots and what each slot's next input is."""

    def __init__(
        self, vllm_config: VllmConfig, model: "TalkerForVllm", encoder_cache: EncoderCache | None, device: torch.device
    ) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        self.pad_id = model.text_tokens.tts_pad_token_id
        self.requests: list[TalkerRequest | None] = [None] * self.max_num_reqs
        # Of each slot, so that a step needs no loop over its requests: whether it holds one of ours, where its frames
        # begin, and the text term of each.
        self.occupied = np.zeros(self.max_num_reqs, bool)
        self.prompt_positions = np.zeros(self.max_num_reqs, np.int64)
        self.text_ids = np.zeros((self.max_num_reqs, self.max_model_len), np.int32)
        self.rejected = torch.zeros(self.max_num_reqs, dtype=torch.int64, device=device)
        """How many tokens of each request are rejected: none, as none are guessed."""
        self.slot_of: dict[str, int] = {}
        """vLLM's id → slot, while the request is scheduled."""
        self.launched_s = 0.0
        """When the last step was launched, of `time.perf_counter`."""
        weights = model.take_frame_weights()
        predictor = FusedPredictor(weights) if runs_on(device) and fits(weights) else PlainPredictor(weights)
        self.frames = FrameMaker(predictor, self.max_num_reqs)
        if device.type == "cuda" and not self.model_config.enforce_eager:
            sizes = vllm_config.compilation_config.cudagraph_capture_sizes
            self.frames.capture({size for size in sizes if size < self.max_num_reqs} | {self.max_num_reqs})

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """A request enters a slot, for the first time or after preemption."""
        super().add_request(req_index, new_req_data)
        parameters = new_req_data.sampling_params
        extra = parameters.extra_args if parameters is not None else None
        self.slot_of[new_req_data.req_id] = req_index
        if extra:  # vLLM's own warm-up requests carry nothing of ours; their rows stay what the buffers hold
            request: TalkerRequest = extra[REQUEST]
            self.requests[req_index] = request
            self.occupied[req_index] = True
            self.prompt_positions[req_index] = request.plan.positions
            self.text_ids[req_index] = self.pad_id
            trailing = request.plan.trailing_text_ids[: self.max_model_len]
            self.text_ids[req_index, : len(trailing)] = trailing
            self.frames.enter(req_index, request.sampling, [int(codes[0]) for codes in request.codes])

    def remove_request(self, req_id: str) -> None:
        """The slot is free again: finished, aborted or preempted. Also called for requests that hold none."""
        super().remove_request(req_id)
        slot = self.slot_of.pop(req_id, None)
        if slot is not None:
            self.requests[slot] = None
            self.occupied[slot] = False

    def prepare_inputs_embeds(
        self, scheduled_encoder_inputs: dict[str, list[int]], input_batch: InputBatch, req_states: RequestState
    ) -> torch.Tensor:
        """Input embeddings [rows, hidden_size], written into the buffer that captured graphs read."""
        # Requests with one row come first: decoding ones, and perhaps a prompt's last position, overwritten below.
        singles = int((input_batch.num_scheduled_tokens == 1).sum())
        if singles:
            torch.index_select(
                self.frames.slot_inputs, 0, input_batch.idx_mapping[:singles], out=self.inputs_embeds[:singles]
            )
        if input_batch.has_prefill:
            self._embed_prompts(input_batch)
        return self.inputs_embeds[: input_batch.num_tokens_after_padding]

    def custom_sampler(self, sampler: Sampler) -> tuple[Sampler, None]:
        """The sampler that the runner calls instead of vLLM's own, and no rejection sampler."""
        return FrameSampler(sampler, self), None

    def make_frames(self, hidden: torch.Tensor, input_batch: InputBatch) -> SamplerOutput:
        """Draw a frame from each hidden state [requests, hidden_size], and send them on their way to the host."""
        stop = input_batch.num_computed_tokens_np + input_batch.num_scheduled_tokens
        # A piece of a prompt that has not reached its end draws nothing that counts, and must not touch the slot.
        drawn = self.occupied[input_batch.idx_mapping_np] & (stop >= input_batch.prefill_len_np)
        rows = np.flatnonzero(drawn)
        slots = input_batch.idx_mapping_np[rows]
        numbers = stop[rows] - self.prompt_positions[slots]
        new = NewFrames(rows, slots, numbers, self.text_ids[slots, numbers])
        with record_function("code predictor"):
            made = self.frames.make(hidden, new)
        host = torch.empty(made.codes.shape, dtype=made.codes.dtype, pin_memory=made.codes.is_cuda)
        arriving = host.copy_(made.codes, non_blocking=True).numpy()
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            request = self.requests[slot]
            assert request is not None
            request.in_flight.append((arriving, row))
        # vLLM copies its tokens to the host beside the next step, which overwrites what this one has made.
        ids, counts = made.begun[:, : len(hidden)].clone()
        self.launched_s = time.perf_counter()
        return SamplerOutput(ids[:, None], None, None, num_sampled=counts, num_rejected=self.rejected[: len(hidden)])

    def _embed_prompts(self, input_batch: InputBatch) -> None:
        """Embed the scheduled rows of prompts, and of accepted frames where a request resumes."""
        ids: list[npt.NDArray[np.int32]] = []
        targets: list[npt.NDArray[np.int64]] = []
        speakers: list[tuple[int, bytes]] = []
        for row in np.flatnonzero(input_batch.is_prefilling_np).tolist():
            request = self.requests[input_batch.idx_mapping_np[row]]
            if request is None:
                continue
            start, count = int(input_batch.num_computed_tokens_np[row]), int(input_batch.num_scheduled_tokens[row])
            first = int(input_batch.query_start_loc_np[row])
            ids.append(request.input_ids(start, start + count, self.pad_id))
            targets.append(np.arange(first, first + count))
            if request.plan.speaker is not None and start <= request.plan.speaker_row < start + count:
                speakers.append((first + request.plan.speaker_row - start, request.plan.speaker))
        if not ids:
            return
        rows = self._upload(np.concatenate(ids).astype(np.int64))
        embedded = self.frames.weights.embed(rows[:, 0], rows[:, 1:])
        self.inputs_embeds.index_copy_(0, self._upload(np.concatenate(targets)), embedded)
        for target, speaker in speakers:
            self.inputs_embeds[target] += self._upload(np.frombuffer(speaker, "<f4").copy()).to(self.dtype)

    def _upload(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return async_copy_to_gpu(array, device=self.device)


class FrameSampler(Sampler):
    """Draws whole frames in the place of vLLM's sampler. The runner counts tokens in it, which nobody reads."""

    def __init__(self, base: Sampler, state: TalkerModelState) -> None:
        super().__init__(
            state.max_num_reqs,
            base.sampling_states.vocab_size,
            state.device,
            base.req_states,
            logprobs_mode=base.logprobs_mode,
            num_speculative_tokens=base.num_speculative_tokens,
            use_fp64_gumbel=base.use_fp64_gumbel,
        )
        self._state = state

    def add_request(self, req_idx: int, prompt_len: int, sampling_params: SamplingParams) -> None:
        """A request draws as its TalkerRequest says."""

    def apply_staged_writes(self) -> None:
        """Nothing is staged."""

    def __call__(self, logits: torch.Tensor, input_batch: InputBatch) -> SamplerOutput:
        """Whole frames; what the model calls its logits are hidden states [requests, hidden_size]."""
        return self._state.make_frames(logits, input_batch)
