"""From the pipeline's samples (s16le mono, 24 kHz) to the bytes of an answer: its speed and its format."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from .encoders import Encoder, Format
from .tempo import Tempo

NATURAL_SPEED = 1.0


class Transcoder:
    """One answer's way from samples to bytes, on the event loop. Calls follow one another; a cancelled one is the last.

    What computes runs in `pool`, from the making of the encoder on; the rest is done at once.
    """

    def __init__(self, format: Format, speed: float, complete: bool, pool: Executor) -> None:
        natural = speed == NATURAL_SPEED
        self._pool = None if natural and not format.compressed else pool
        self._make_tempo = None if natural else partial(Tempo, speed)
        self._make_encoder = partial(Encoder, format, complete)
        self._tempo: Tempo | None = None
        self._encoder: Encoder | None = None

    async def encode(self, samples: bytes) -> bytes:
        """Take samples, s16le; return what is ready, which may be nothing."""
        return await self._do(partial(self._encode, samples))

    async def finish(self) -> bytes:
        """The rest."""
        return await self._do(self._finish)

    async def _do(self, work: Callable[[], bytes]) -> bytes:
        if self._pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _encode(self, samples: bytes) -> bytes:
        if self._encoder is None:
            self._tempo = self._make_tempo() if self._make_tempo else None
            self._encoder = self._make_encoder()
        return self._encoder.encode(self._tempo.push(samples) if self._tempo else samples)

    def _finish(self) -> bytes:
        rest = self._encode(b"")
        assert self._encoder is not None
        if self._tempo is not None:
            rest += self._encoder.encode(self._tempo.finish())
        return rest + self._encoder.finish()
