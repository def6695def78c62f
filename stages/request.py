"""One request on its way through both stages: its state, its timestamps, and the listener's end of it.

All of it belongs to the API process's event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

from .errors import DuotoneError, StageFailed
from .types import CODEBOOKS, FRAME_S, SAMPLE_BYTES, SAMPLES_PER_FRAME, PromptPlan, Sampling
from .workers import Replica

FRAME_BYTES = 2 * CODEBOOKS

AbortReason = Literal["disconnect", "slow_client", "cancel", "stall", "limit", "failure"]
"""Why a stream was given up: the listener left, took nothing for too long, asked for it; a stage made nothing; the
answer had as many frames as were asked for; another piece of it failed."""


@dataclass(eq=False)
class Request:
    """What the orchestrator knows of a request. Times are `time.monotonic()` seconds."""

    key: int
    request_id: str
    plan: PromptPlan
    sampling: Sampling
    submitted_s: float
    admitted_s: float = 0.0
    first_audio_s: float = 0.0
    last_audio_s: float = 0.0

    sent_s: float = 0.0
    """When the chunk went out that is in flight."""

    talker: Replica | None = None
    code2wav: Replica | None = None
    codes: bytearray = field(default_factory=bytearray)
    """Frames that the Talker made and Code2Wav has not got, int16 [pending, 16]."""
    unheard_frames: int = 0
    """Frames of the prompt's recording that Code2Wav has yet to decode: they stand before the answer's, unheard."""
    made_frames: int = 0
    sent_frames: int = 0
    decoded_frames: int = 0
    silent_s: float = 0.0
    """How long a listener who started at the first samples has heard nothing since."""
    decoding: bool = False
    """A chunk is in flight in Code2Wav."""
    closed: bool = False
    """The last chunk has been sent to Code2Wav."""
    finish_reason: str | None = None
    """`stop` or `length` once the Talker is done."""

    chunks: deque[bytes] = field(default_factory=deque)
    """Samples that the listener has not taken yet."""
    undelivered_bytes: int = 0
    ended: bool = False
    failure: DuotoneError | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pending_frames(self) -> int:
        """Frames made and not sent."""
        return len(self.codes) // FRAME_BYTES

    @property
    def undelivered_s(self) -> float:
        """Seconds of audio that the listener has not taken."""
        return self.undelivered_bytes / SAMPLE_BYTES / SAMPLES_PER_FRAME * FRAME_S

    @property
    def dry_at_s(self) -> float:
        """When a listener who started at the first samples runs dry; the time of arrival while there is no sample."""
        if not self.decoded_frames:
            return self.submitted_s
        return self.first_audio_s + self.decoded_frames * FRAME_S + self.silent_s

    def take_codes(self, frames: int) -> bytes:
        """Remove the next frames from those pending."""
        codes = bytes(self.codes[: frames * FRAME_BYTES])
        del self.codes[: frames * FRAME_BYTES]
        self.sent_frames += frames
        return codes

    def deliver(self, samples: bytes) -> None:
        """Hand samples to the listener."""
        self.chunks.append(samples)
        self.undelivered_bytes += len(samples)
        self.wake.set()

    def end(self, failure: DuotoneError | None = None) -> None:
        """Nothing more comes. After a failure, what was not taken is dropped: the listener sees the error now."""
        self.ended = True
        self.failure = failure
        if failure is not None:
            self.chunks.clear()
        self.wake.set()


class Stream:
    """The listener's end of a request: an asynchronous iterator over s16le mono samples at 24 kHz."""

    def __init__(
        self,
        request: Request,
        stall_timeout_s: float,
        taken: Callable[[Request], None],
        cancelled: Callable[[Request, AbortReason], None],
    ) -> None:
        self._request = request
        self._stall_timeout_s = stall_timeout_s
        self._taken = taken
        self._cancelled = cancelled

    @property
    def prompt_positions(self) -> int:
        """Positions of the prompt: the input tokens of the usage."""
        return self._request.plan.tokens

    @property
    def frames(self) -> int:
        """Frames made so far: the output tokens of the usage."""
        return self._request.made_frames

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length`; None while the Talker works."""
        return self._request.finish_reason

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next samples. Raises StageFailed (or what else ended the request) when it failed."""
        request = self._request
        while not request.chunks:
            if request.failure is not None:
                raise request.failure
            if request.ended:
                raise StopAsyncIteration
            request.wake.clear()
            await self._wait()
        samples = request.chunks.popleft()
        request.undelivered_bytes -= len(samples)
        self._taken(request)
        return samples

    async def _wait(self) -> None:
        """Until something happens to the request. Raises StageFailed when a stage holds it and makes nothing of it."""
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self._request.wake.wait()
        except TimeoutError:
            if self._request.talker is not None:
                self.cancel("stall")
                raise StageFailed(f"no sample came for {self._stall_timeout_s:.0f} s") from None

    def cancel(self, reason: AbortReason = "disconnect") -> None:
        """Stop the work in both stages at once. Safe to call twice, and after the end."""
        self._cancelled(self._request, reason)
