"""A request's text spoken as one stream of samples, without HTTP: what the speech route and the command line share.

`Narrator` checks a request, its `Delivery` turns texts into pieces, each a prompt with its sampling. `Narration` speaks
them one after the other: while one is heard the next is made already, never more than one ahead.
"""

import asyncio
import contextlib
import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

import msgspec

from ..stages.errors import DuotoneError, NotReady, RequestError
from ..stages.orchestrator import Orchestrator
from ..stages.request import AbortReason, Stream
from ..stages.talker.prompt import Reference
from ..stages.types import SAMPLE_BYTES, SAMPLE_RATE, SAMPLES_PER_FRAME, PromptPlan, Sampling
from .catalog import Catalog
from .cloning import Cloning
from .config import Settings, TextOptions
from .leading_silence import LeadingSilence
from .protocol import MAX_SEED, SpeechChoices, SpeechRequest, Usage
from .text import ends_sentence, speakable_pieces

_FRAME_BYTES = SAMPLES_PER_FRAME * SAMPLE_BYTES
_SPOKEN_LENGTH = 2
"""How many times its limit an input may be long once its numbers and signs are words."""
_SAMPLING_FIELDS = {"temperature", "top_k", "top_p", "repetition_penalty"}


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
        reference: Reference | None,
    ) -> PromptPlan: ...


@dataclass(frozen=True)
class Piece:
    """A part of the text, ready to be spoken."""

    text: str
    plan: PromptPlan
    sampling: Sampling


class Narrator:
    """Checks requests against the served model and starts to speak them."""

    def __init__(
        self, settings: Settings, catalog: Catalog, cloning: Cloning, planner: Planner, pipeline: Orchestrator
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._cloning = cloning
        self._planner = planner
        self._pipeline = pipeline

    async def begin(self, request_id: str, request: SpeechRequest) -> "Narration":
        """Submit the first piece of a request. Raises NotReady, and as `delivery`; QueueFull."""
        self._check_length("input", request.input)
        delivery = await self.delivery(request)
        texts = speakable_pieces(request.input, delivery.front)
        self._check_spoken_length(texts)
        pieces = [delivery.piece(text) for text in texts]
        silence = b"" if pieces else _silence(self._settings.text.silence_s)
        narration = self._narration(request_id, request, request.max_new_frames, silence)
        narration.extend(pieces)
        narration.close()
        narration.submit()
        return narration

    def open(self, request_id: str, choices: SpeechChoices) -> "Narration":
        """One whose pieces are still to come. Raises NotReady."""
        if not self._pipeline.ready:
            raise NotReady("a stage is starting, draining or dead")
        return self._narration(request_id, choices, max_frames=None, silence=b"")

    async def delivery(self, choices: SpeechChoices) -> "Delivery":
        """Raises RequestError (ModelNotFound) for what the served model does not have, and as `Cloning.reference`."""
        self._catalog.check_model(choices.model)
        self._check_length("instructions", choices.instructions or "")
        language = self._catalog.language(choices.language)
        instructions = self._catalog.instructions(choices.instructions)
        plan = partial(
            self._planner,
            language=language,
            speaker=self._catalog.voice(choices.voice),
            non_streaming=choices.non_streaming_mode,
            reference=await self._cloning.reference(choices),
        )
        front, most_positions = self._settings.text_front(language), self._settings.pipeline.talker.max_positions
        return Delivery(front, plan, instructions, choices, self._catalog.model.sampling, most_positions)

    def _narration(
        self, request_id: str, choices: SpeechChoices, max_frames: int | None, silence: bytes
    ) -> "Narration":
        frames_are_given = choices.min_new_frames is not None or choices.max_new_frames is not None
        leading = LeadingSilence(self._settings.skips_leading_silence and not frames_are_given)
        pause = _silence(self._settings.text.pause_s)
        return Narration(self._pipeline, request_id, max_frames, silence, pause, leading)

    def _check_length(self, field: str, text: str) -> None:
        most = self._settings.max_input_chars
        if len(text) > most:
            raise RequestError(f"{field} has {len(text)} characters, more than {most}", field)

    def _check_spoken_length(self, texts: list[str]) -> None:
        """Written as words, digits and signs may become many times as long."""
        spoken, most = sum(map(len, texts)), _SPOKEN_LENGTH * self._settings.max_input_chars
        if spoken > most:
            raise RequestError(f"input has {spoken} characters when it is written as words, more than {most}", "input")


@dataclass
class Delivery:
    """Makes the pieces of one request, in order: each has a seed of its own."""

    front: TextOptions
    """How the texts become pieces."""
    plan: Callable[..., PromptPlan]
    """The planner, with all but the text and the instruction filled in."""
    instructions: str | None
    choices: SpeechChoices
    defaults: Sampling
    most_positions: int
    """Of a prompt and its answer together."""
    made: int = 0

    def __post_init__(self) -> None:
        self._seed = secrets.randbelow(MAX_SEED) if self.choices.seed is None else self.choices.seed

    def piece(self, text: str) -> Piece:
        """The next piece. Raises RequestError when the text does not fit into a prompt."""
        plan = self.plan(text, instruction=self.instructions)
        least, room = self.choices.min_new_frames, self.most_positions - plan.positions
        if room < 1 and self.plan(text, instruction=None).positions < self.most_positions:
            raise RequestError("they are so long that the prompt has no room for the text", "instructions")
        if least is not None and least > room:
            raise RequestError(
                f"a piece of this text has room for {max(0, room)} frames, not {least}", "min_new_frames"
            )
        sampling = self._sampling(piece_seed(self._seed, self.made), self._most_frames(text, plan))
        self.made += 1
        return Piece(text, plan, sampling)

    def _most_frames(self, text: str, plan: PromptPlan) -> int:
        """Frames of a piece where the request sets no limit: an end to a voice that babbles on, within what fits."""
        return min(
            self.front.frames_base + self.front.frames_per_char * len(text),
            self.defaults.max_new_frames,
            self.most_positions - plan.positions,
        )

    def _sampling(self, seed: int, most_frames: int) -> Sampling:
        """The checkpoint's sampling with what the request sets; `most_frames` holds where it sets no limit."""
        choices, defaults = self.choices, self.defaults
        given = choices.model_dump(include=_SAMPLING_FIELDS, exclude_none=True)
        if choices.temperature == 0:
            given["subtalker_temperature"] = 0.0
        least = defaults.min_new_frames if choices.min_new_frames is None else choices.min_new_frames
        most = max(least, most_frames) if choices.max_new_frames is None else choices.max_new_frames
        return msgspec.structs.replace(
            defaults, seed=seed, min_new_frames=min(least, most), max_new_frames=most, **given
        )


def _silence(duration_s: float) -> bytes:
    return bytes(SAMPLE_BYTES * round(duration_s * SAMPLE_RATE))


def piece_seed(seed: int, index: int) -> int:
    """The seed of a request's piece: the request's own for the first, for others one that follows from it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


@dataclass(frozen=True)
class _Submitted:
    piece: Piece
    stream: Stream


class Narration:
    """An asynchronous iterator over a request's samples, s16le mono. As a context manager it cancels what is left.

    Pieces may be added while it is heard; at the last one it waits for more until it is closed. Iterating raises what
    the pipeline raises (StageFailed, NotReady). It holds no samples: who does not iterate leaves them in the pipeline,
    which bounds them.
    """

    def __init__(
        self,
        pipeline: Orchestrator,
        request_id: str,
        max_frames: int | None,
        silence: bytes,
        pause: bytes,
        leading_silence: LeadingSilence,
    ) -> None:
        """`silence`: samples in front of all others; `pause`: between a piece that ends a sentence and the next.

        Neither counts as frames: not in the usage, not towards `max_frames`. What `leading_silence` leaves out does.
        """
        self._pipeline = pipeline
        self._request_id = request_id
        self._upcoming: deque[Piece] = deque()
        self._silence = silence
        self._pause = pause
        self._pause_is_due = False
        self._leading_silence = leading_silence
        self._left_bytes = None if max_frames is None else max_frames * _FRAME_BYTES
        self._spoken_bytes = 0
        self._prompt_positions = 0
        self._submitted: list[_Submitted] = []
        """The piece that is heard, then the one that is made ahead."""
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def usage(self) -> Usage:
        """What it took so far: positions of the prompts submitted, frames handed out."""
        frames = self._spoken_bytes // _FRAME_BYTES
        return Usage(
            input_tokens=self._prompt_positions,
            output_tokens=frames,
            total_tokens=self._prompt_positions + frames,
        )

    @property
    def piece(self) -> Piece | None:
        """The piece that the samples handed out last belong to; None before the first and after the last.

        A pause belongs to the piece behind it.
        """
        return self._submitted[0].piece if self._submitted else None

    @property
    def speaking(self) -> bool:
        """Whether a piece is spoken or could be; not while it waits for more."""
        return bool(self._submitted or self._upcoming)

    @property
    def upcoming_chars(self) -> int:
        """The length of what is not submitted yet."""
        return sum(len(piece.text) for piece in self._upcoming)

    def extend(self, pieces: Iterable[Piece]) -> None:
        """Add to what is spoken."""
        self._upcoming.extend(pieces)
        self._changed.set()

    def close(self) -> None:
        """Nothing will be added: it ends behind the last piece."""
        self._closed = True
        self._changed.set()

    def submit(self) -> None:
        """Submit the next piece, if there is one. Raises RequestError, NotReady: then it stays upcoming."""
        if not self._upcoming:
            return
        piece = self._upcoming[0]
        stream = self._pipeline.submit(self._request_id, piece.plan, piece.sampling, self._prompt_positions > 0)
        self._upcoming.popleft()
        self._prompt_positions += stream.prompt_positions
        self._submitted.append(_Submitted(piece, stream))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._silence:
            samples, self._silence = self._silence, b""
            return samples
        while await self._goes_on():
            if self._pause_is_due:
                self._pause_is_due = False
                if samples := self._leading_silence.push(self._pause):
                    return samples
            current = self._submitted[0]
            try:
                samples = await current.stream.__anext__()
            except StopAsyncIteration:
                del self._submitted[:1]
                self._pause_is_due = bool(self._pause) and ends_sentence(current.piece.text)
                continue
            except DuotoneError:
                self.cancel("failure")
                raise
            if len(self._submitted) == 1:
                with contextlib.suppress(NotReady):  # Nothing is lost yet: the next samples bring the next try.
                    self.submit()
            if samples := self._leading_silence.push(self._within_limit(samples)):
                return samples
        if samples := self._leading_silence.finish():
            return samples
        raise StopAsyncIteration

    def cancel(self, reason: AbortReason = "disconnect") -> None:
        """Stop the work in both stages at once. Safe to call twice, and after the end."""
        for submitted in self._submitted:
            submitted.stream.cancel(reason)
        self._submitted.clear()
        self._upcoming.clear()
        self._leading_silence.finish()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def _goes_on(self) -> bool:
        """Whether a piece is submitted: waits for the next one where none is."""
        while not self._submitted and not self._upcoming and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if not self._submitted:
            self.submit()
        return bool(self._submitted)

    def _within_limit(self, samples: bytes) -> bytes:
        if self._left_bytes is not None:
            samples = samples[: self._left_bytes]
            self._left_bytes -= len(samples)
            if not self._left_bytes:
                self.cancel("limit")
        self._spoken_bytes += len(samples)
        return samples
