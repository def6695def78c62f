"""A request's text spoken as one stream of samples, without HTTP: what the speech route and the command line share.

`Narrator` turns a checked request into pieces, each a prompt with its sampling. `Narration` speaks them one after the
other: while one is heard the next is made already, never more than one ahead.
"""

import hashlib
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import msgspec

from ..stages.errors import NotReady, RequestError
from ..stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME, PromptPlan, Sampling
from .audio import SAMPLE_BYTES
from .catalog import Catalog
from .config import Settings
from .protocol import MAX_SEED, SpeechRequest, Usage
from .text import speakable_pieces

_FRAME_BYTES = SAMPLES_PER_FRAME * SAMPLE_BYTES
_SAMPLING_FIELDS = {"temperature", "top_k", "top_p", "repetition_penalty"}


class PieceStream(Protocol):
    """The samples of one piece: s16le mono, 24 kHz, any even number of bytes at a time."""

    @property
    def prompt_positions(self) -> int: ...

    async def __anext__(self) -> bytes: ...

    def cancel(self) -> None: ...


class Profiling(Protocol):
    """The pipeline's profiling; stages/profile_control.py says what each raises."""

    @property
    def stages(self) -> tuple[str, ...]: ...

    async def start(self, stages: Sequence[str] | None) -> list[str]: ...

    async def stop(self, stages: Sequence[str] | None) -> dict[str, list[str]]: ...


class SpeechPipeline(Protocol):
    """The orchestrator as the server sees it; stages/orchestrator.py says what each raises."""

    @property
    def ready(self) -> bool: ...

    @property
    def profiling(self) -> Profiling: ...

    async def exposition(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self, drain_s: float) -> None: ...

    def submit(self, request_id: str, plan: PromptPlan, sampling: Sampling, follows: bool) -> PieceStream: ...


class Planner(Protocol):
    """`build_plan` of stages/talker/prompt.py for the served checkpoint. Raises RequestError."""

    def __call__(
        self,
        text: str,
        *,
        language: str,
        speaker: str | None,
        instruction: str | None,
        non_streaming: bool | None,
    ) -> PromptPlan: ...


@dataclass(frozen=True)
class Piece:
    """A part of the text, ready to be spoken."""

    plan: PromptPlan
    sampling: Sampling


class Narrator:
    """Checks requests against the served model and starts to speak them."""

    def __init__(self, settings: Settings, catalog: Catalog, planner: Planner, pipeline: SpeechPipeline) -> None:
        self._settings = settings
        self._catalog = catalog
        self._planner = planner
        self._pipeline = pipeline

    def begin(self, request_id: str, request: SpeechRequest) -> "Narration":
        """Submit the first piece of a request. Raises RequestError (QueueFull, ModelNotFound), NotReady."""
        self._catalog.check_model(request.model)
        for field, text in (("input", request.input), ("instructions", request.instructions or "")):
            if len(text) > self._settings.max_input_chars:
                most = self._settings.max_input_chars
                raise RequestError(f"{field} has {len(text)} characters, more than {most}", field)
        voice = self._catalog.voice(request.voice)
        language = self._catalog.language(request.language)
        instructions = self._catalog.instructions(request.instructions)
        seed = secrets.randbelow(MAX_SEED) if request.seed is None else request.seed
        pieces = []
        for index, text in enumerate(speakable_pieces(request.input, self._settings.text)):
            plan = self._planner(
                text,
                language=language,
                speaker=voice,
                instruction=instructions,
                non_streaming=request.non_streaming_mode,
            )
            most_frames = self._most_frames(text, plan)
            pieces.append(Piece(plan, self._sampling(request, piece_seed(seed, index), most_frames)))
        silence = bytes(SAMPLE_BYTES * round(self._settings.text.silence_s * SAMPLE_RATE))
        return Narration(self._pipeline, request_id, pieces, request.max_new_frames, silence)

    def _most_frames(self, text: str, plan: PromptPlan) -> int:
        """Frames of a piece where the request sets no limit: an end to a voice that babbles on, within what fits."""
        front = self._settings.text
        return min(
            front.frames_base + front.frames_per_char * len(text),
            self._catalog.model.sampling.max_new_frames,
            self._settings.pipeline.talker.max_positions - plan.positions,
        )

    def _sampling(self, request: SpeechRequest, seed: int, most_frames: int) -> Sampling:
        """The checkpoint's sampling with what the request sets; `most_frames` holds where it sets no limit."""
        defaults = self._catalog.model.sampling
        given = request.model_dump(include=_SAMPLING_FIELDS, exclude_none=True)
        if request.temperature == 0:
            given["subtalker_temperature"] = 0.0
        least = defaults.min_new_frames if request.min_new_frames is None else request.min_new_frames
        most = max(least, most_frames) if request.max_new_frames is None else request.max_new_frames
        return msgspec.structs.replace(
            defaults, seed=seed, min_new_frames=min(least, most), max_new_frames=most, **given
        )


def piece_seed(seed: int, index: int) -> int:
    """The seed of a request's piece: the request's own for the first, for others one that follows from it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


class Narration:
    """An asynchronous iterator over a request's samples, s16le mono. As a context manager it cancels what is left.

    Iterating raises what the pipeline raises (StageFailed, NotReady). It holds no samples: who does not iterate leaves
    them in the pipeline, which bounds them.
    """

    def __init__(
        self,
        pipeline: SpeechPipeline,
        request_id: str,
        pieces: Sequence[Piece],
        max_frames: int | None,
        silence: bytes,
    ) -> None:
        self._pipeline = pipeline
        self._request_id = request_id
        self._upcoming = deque(pieces)
        self._silence = b"" if pieces else silence
        self._left_bytes = None if max_frames is None else max_frames * _FRAME_BYTES
        self._spoken_bytes = 0
        self._prompt_positions = 0
        self._current = self._submit()
        self._ahead: PieceStream | None = None

    @property
    def usage(self) -> Usage:
        """What it took so far: positions of the prompts submitted, frames handed out."""
        frames = self._spoken_bytes // _FRAME_BYTES
        return Usage(
            input_tokens=self._prompt_positions,
            output_tokens=frames,
            total_tokens=self._prompt_positions + frames,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._silence:
            samples, self._silence = self._silence, b""
            return samples
        while self._current is not None:
            try:
                samples = await self._current.__anext__()
            except StopAsyncIteration:
                self._current, self._ahead = self._ahead or self._submit(), None
                continue
            self._look_ahead()
            return self._within_limit(samples)
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Stop the work in both stages at once. Safe to call twice, and after the end."""
        for stream in (self._current, self._ahead):
            if stream is not None:
                stream.cancel()
        self._current = self._ahead = None
        self._upcoming.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _submit(self) -> PieceStream | None:
        """Submit the next piece, if there is one left. It stays upcoming when the pipeline refuses it."""
        if not self._upcoming:
            return None
        piece = self._upcoming[0]
        stream = self._pipeline.submit(self._request_id, piece.plan, piece.sampling, self._prompt_positions > 0)
        self._upcoming.popleft()
        self._prompt_positions += stream.prompt_positions
        return stream

    def _look_ahead(self) -> None:
        """Have the next piece made while the current one is heard."""
        if self._ahead is None:
            try:
                self._ahead = self._submit()
            except NotReady:
                return  # Nothing is lost yet: the next samples of the current piece bring the next try.

    def _within_limit(self, samples: bytes) -> bytes:
        if self._left_bytes is not None:
            samples = samples[: self._left_bytes]
            self._left_bytes -= len(samples)
            if not self._left_bytes:
                self.cancel()
        self._spoken_bytes += len(samples)
        return samples
