"""The cloning process as the API process sees it: started with the server, asked one recording at a time, replaced.

A process of its own because what it decodes may be hostile, and so that the event loop never waits for it.
"""

import asyncio
import logging
import sys
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

from ..errors import ConfigurationError, NotReady, QueueFull, RequestError, StageFailed
from .config import CloningOptions, CloningSpec
from .messages import LENGTH, Answer, Ready, Recording, Refusal, decode, framed

log = logging.getLogger(__name__)

WORKER_MODULE = "duotone.stages.cloning.worker"
START_TIMEOUT_S = 300.0


class Cloner:
    """Event loop only."""

    def __init__(self, checkpoint: Path, options: CloningOptions) -> None:
        self._spec = CloningSpec(checkpoint=checkpoint, options=options)
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._answers: OrderedDict[bytes, asyncio.Task[Answer]] = OrderedDict()
        """By the recording's digest, those asked for last at the end; the first of them may still be on their way."""

    async def start(self) -> None:
        """Returns when the encoders are loaded. Raises ConfigurationError when the checkpoint has none, StageFailed."""
        async with self._one_at_a_time:
            await self._started()

    async def stop(self) -> None:
        """End the process; what is asked still fails. Safe to call twice."""
        answers = list(self._answers.values())
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        await self._end()

    async def listen(self, audio: bytes, field: str) -> Recording:
        """Encode a recording, or remember it. Who asks may go: the answer is remembered all the same.

        Raises RequestError that names `field`, QueueFull, StageFailed, NotReady while the server stops.
        """
        if len(audio) > self._options.max_audio_bytes:
            raise RequestError(f"the recording is larger than {self._options.max_audio_bytes} bytes", field)
        digest = blake2b(audio).digest()
        task = self._answers.get(digest)
        if task is None:
            waiting = sum(not task.done() for task in self._answers.values())
            if waiting >= self._options.max_waiting:
                raise QueueFull(f"{waiting} recordings are waiting to be encoded", retry_after_s=1)
            task = self._answers[digest] = asyncio.create_task(self._answer(audio), name="encode a recording")
            task.add_done_callback(lambda task: self._keep(digest, task))
        self._answers.move_to_end(digest)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotReady("the server is stopping") from None
            raise
        if isinstance(answer, Recording):
            return answer
        assert isinstance(answer, Refusal)
        raise RequestError(f"the recording cannot be used: {answer.message}", field)

    def _keep(self, digest: bytes, task: asyncio.Task[Answer]) -> None:
        """Forget what failed, and what was asked for long ago."""
        if task.cancelled() or task.exception() is not None:
            del self._answers[digest]
        done = [digest for digest, task in self._answers.items() if task.done()]
        for old in done[: max(0, len(done) - self._options.remembered)]:
            del self._answers[old]

    async def _answer(self, audio: bytes) -> Answer:
        async with self._one_at_a_time:
            process = await self._started()
            assert process.stdin is not None
            process.stdin.write(framed(audio))
            return await self._next(process, self._options.timeout_s)

    async def _started(self) -> asyncio.subprocess.Process:
        """The process; another one when the last has ended."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", WORKER_MODULE, self._spec.model_dump_json()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise StageFailed(f"cloning: the process cannot be started: {error}") from error
        answer = await self._next(process, START_TIMEOUT_S)
        if isinstance(answer, Refusal):
            await self._end()
            raise ConfigurationError(f"cloning: {answer.message}")
        assert isinstance(answer, Ready)
        return process

    async def _next(self, process: asyncio.subprocess.Process, timeout_s: float) -> Answer:
        """The next answer. After anything but one, the process is ended: it could not be trusted to be in step."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                length = await process.stdout.readexactly(LENGTH.size)
                return decode(await process.stdout.readexactly(*LENGTH.unpack(length)))
        except TimeoutError:
            await self._end()
            raise StageFailed(f"cloning: no answer came for {timeout_s:g} s") from None
        except asyncio.IncompleteReadError:
            await process.wait()
            raise StageFailed(f"cloning: the process died (exit status {process.returncode})") from None
        except asyncio.CancelledError:
            await self._end()
            raise

    async def _end(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
