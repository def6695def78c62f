"""The Talker's engine in PyTorch, made for a CPU: continuous batching over slots.

Requests join and leave between steps. A step is: one more position of every running request, the prompt of one waiting
request, code 0 of all of them, the other 15 codes, the next inputs. Worker's main thread alone.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from ..checkpoint import Checkpoint
from ..engine import Engine
from ..messages import Abort, Ended, Failed, Frames, Speak, StageCommand
from ..pipeline import TalkerOptions
from ..types import CODEBOOKS, NO_CODE, PromptPlan, Sampling
from .sampling import Draw, DrawRows, Noise, penalise
from .torch_runner import BackboneRunner, FrameRunner
from .torch_weights import TalkerWeights

log = logging.getLogger(__name__)

WARM_UP_KEY = -1
"""No request's key: those count from 0 up."""


@dataclass(eq=False)
class Stream:
    """A request that holds a slot."""

    key: int
    slot: int
    sampling: Sampling
    position: int
    """Where the next input stands."""
    trailing_text: tuple[Tensor, ...]
    """Text terms of the first frames, each [hidden]."""
    noise: Noise
    frames: int = 0
    next_input: Tensor = field(init=False)
    """[1, hidden]; there is one as soon as there is a frame."""


@dataclass(frozen=True)
class Batch:
    """The streams of a step, a row each, and what depends on nothing but who they are."""

    streams: tuple[Stream, ...]
    slots: Tensor
    """Int64 [rows]."""
    first_code: DrawRows
    later_codes: DrawRows
    penalty: Tensor | None
    """Float32 [rows, 1]; None when no stream has one."""

    @classmethod
    def of(cls, streams: list[Stream], device: torch.device) -> "Batch":
        """The batch of these streams."""
        samplings = [stream.sampling for stream in streams]
        penalties = [sampling.repetition_penalty for sampling in samplings]
        return cls(
            streams=tuple(streams),
            slots=torch.tensor([stream.slot for stream in streams], dtype=torch.int64, device=device),
            first_code=DrawRows.of([Draw.first_code(sampling) for sampling in samplings], device),
            later_codes=DrawRows.of([Draw.later_codes(sampling) for sampling in samplings], device),
            penalty=None if set(penalties) <= {1.0} else torch.tensor(penalties, device=device)[:, None],
        )


class TorchTalkerEngine(Engine):
    """Takes Speak and Abort."""

    def __init__(self, checkpoint: Checkpoint, options: TalkerOptions) -> None:
        """Build, load, allocate, warm up. Raises CheckpointError."""
        torch.set_num_threads(options.threads)
        self.slots = options.slots
        self._device = torch.device(options.device)
        dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
        config, tokens = checkpoint.talker, checkpoint.text_tokens
        with torch.inference_mode():
            self._weights = weights = TalkerWeights.load(checkpoint, self._device, dtype)
            self._backbone = BackboneRunner(config, weights, self.slots, options.max_positions)
            self._frames = FrameRunner(config.code_predictor_config, weights, self.slots)
            self._pad_text = weights.embed_text([tokens.tts_pad_token_id])[0]
            self._seen = torch.zeros(self.slots, weights.eos_row + 1, dtype=torch.bool, device=self._device)
        log.info("key/value buffers: up to %d MiB", self._backbone.buffer_bytes >> 20)
        self._waiting: deque[Speak] = deque()
        self._failed: list[int] = []
        """Streams that have failed and of which that is still to be told."""
        self._free_slots = list(range(self.slots))
        self._batch = Batch.of([], self._device)
        self._warm_up(tokens.tts_pad_token_id)

    def accept(self, command: StageCommand) -> None:
        """Take an Abort, or a Speak whose prompt and frames have room: the orchestrator sends no other."""
        if isinstance(command, Abort):
            self._waiting = deque(speak for speak in self._waiting if speak.key not in command.keys)
            self._retire(set(command.keys))
            return
        assert isinstance(command, Speak)  # Decode is for the other stage
        self._waiting.append(command)

    def has_work(self) -> bool:
        """Whether a request is running or waiting, or has failed."""
        return bool(self._waiting or self._batch.streams or self._failed)

    @torch.inference_mode()
    def step(self) -> Frames | Failed:
        """Make a frame of every running request, and the first one of the request that has waited longest.

        A request with which the model overflows fails, and is told of at the next step.
        """
        if self._failed:
            failed, self._failed = self._failed, []
            return Failed(failed, "the model overflows with this request")
        started_s = time.perf_counter()
        hidden = self._hidden_states()
        batch_rows = len(hidden)
        uniform = np.stack([stream.noise.frame() for stream in self._batch.streams])
        uniform_rows = torch.from_numpy(uniform).to(self._device)
        logits = self._weights.first_code_logits(hidden)
        sound = logits.isfinite().all(-1).tolist()
        first_codes = self._draw_first_codes(logits.nan_to_num(), uniform_rows[:, 0])
        stopped = (first_codes == self._weights.eos_row).tolist()
        keys = [stream.key for stream in self._batch.streams]
        self._failed = [key for key, good in zip(keys, sound, strict=True) if not good]
        ended = [Ended(key, "stop") for key, good, stop in zip(keys, sound, stopped, strict=True) if good and stop]
        if ended or self._failed:
            going_on = [row for row, (good, stop) in enumerate(zip(sound, stopped, strict=True)) if good and not stop]
            self._retire({*self._failed, *(end.key for end in ended)})
            hidden, first_codes, uniform_rows = hidden[going_on], first_codes[going_on], uniform_rows[going_on]
        keys = [stream.key for stream in self._batch.streams]
        codes = self._complete_frames(hidden, first_codes, uniform_rows) if keys else b""
        at_limit = [stream.key for stream in self._batch.streams if stream.frames == stream.sampling.max_new_frames]
        self._retire(set(at_limit))
        ended += [Ended(key, "length") for key in at_limit]
        return Frames(keys, codes, ended, batch=batch_rows, step_s=time.perf_counter() - started_s)

    def close(self) -> None:
        """Give the memory back; the engine cannot be used any more."""
        del self._weights, self._backbone, self._frames, self._batch

    def _hidden_states(self) -> Tensor:
        """The hidden states that this step's frames begin with, [rows, 1, hidden]: running streams, then a new one.

        One prompt a step at most, so that prompts that arrive together do not hold the running streams up.
        """
        hidden: list[Tensor] = []
        streams = self._batch.streams
        if streams:
            slots, positions = [stream.slot for stream in streams], [stream.position for stream in streams]
            inputs = torch.stack([stream.next_input for stream in streams])
            with record_function("decode"):
                hidden.append(self._backbone.decode(slots, positions, inputs))
            for stream in streams:
                stream.position += 1
        if self._waiting and self._free_slots:
            stream, prompt = self._admit(self._waiting.popleft())
            with record_function("prefill"):
                hidden.append(self._backbone.prefill(stream.slot, prompt))
            self._batch = Batch.of([*streams, stream], self._device)
        return torch.cat(hidden)

    def _admit(self, speak: Speak) -> tuple[Stream, Tensor]:
        """Give a request a slot. Returns its stream and its prompt's inputs, [1, positions, hidden]."""
        plan, sampling = speak.plan, speak.sampling
        stream = Stream(
            key=speak.key,
            slot=self._free_slots.pop(),
            sampling=sampling,
            position=plan.positions,
            trailing_text=self._weights.embed_text(plan.trailing_text_ids).unbind(),
            noise=Noise(sampling.seed),
        )
        self._seen[stream.slot] = False
        return stream, self._weights.embed_prompt(plan)

    def _draw_first_codes(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Rows of `head`, int64 [rows]: codes 0, or eos. `logits` is float32 [rows, head], `uniform` float32 [rows]."""
        batch = self._batch
        if batch.penalty is not None:
            logits = penalise(logits, self._seen[batch.slots], batch.penalty)
        too_early = [row for row, it in enumerate(batch.streams) if it.frames < it.sampling.min_new_frames]
        if too_early:
            logits[too_early, -1] = -torch.inf
        codes = batch.first_code(logits, uniform)
        if batch.penalty is not None:
            self._seen[batch.slots, codes] = True
        return codes

    def _complete_frames(self, hidden: Tensor, first_codes: Tensor, uniform: Tensor) -> bytes:
        """A frame of every stream of the batch, int16 [rows, 16]; makes their next inputs."""
        streams = self._batch.streams
        with record_function("code predictor"):
            codes = self._frames.complete(hidden, first_codes, self._batch.later_codes, uniform)
        text = torch.stack([self._text_term(stream) for stream in streams])
        inputs = (self._weights.embed_frames(codes) + text)[:, None]
        for stream, row in zip(streams, inputs.unbind(), strict=True):
            stream.next_input = row
            stream.frames += 1
        return codes.cpu().numpy().astype("<i2").tobytes()

    def _text_term(self, stream: Stream) -> Tensor:
        """What the text adds to the input that the stream's current frame becomes, [hidden]."""
        return stream.trailing_text[stream.frames] if stream.frames < len(stream.trailing_text) else self._pad_text

    def _retire(self, keys: set[int]) -> None:
        """Take streams out of the batch and free their slots; unknown keys are ignored."""
        gone = [stream for stream in self._batch.streams if stream.key in keys]
        if gone:
            self._free_slots += [stream.slot for stream in gone]
            self._batch = Batch.of([it for it in self._batch.streams if it.key not in keys], self._device)

    def _warm_up(self, text_id: int) -> None:
        """Run a request of our own: what libraries do at their first use is done before anybody waits for it."""
        rows = np.full((16, 1 + CODEBOOKS), NO_CODE, "<i4")
        rows[:, 0] = text_id
        sampling = Sampling(seed=0, min_new_frames=2, max_new_frames=2)
        self.accept(Speak(WARM_UP_KEY, PromptPlan(rows.tobytes()), sampling))
        while self.has_work():
            self.step()
