"""The only one who knows requests across stages. A request's life:

1. `submit` makes it and queues it; it waits for a slot in both stages.
2. `_admit` gives it a Talker and a Code2Wav replica and sends the plan to the Talker, and to Code2Wav the frames of the
   recording that a cloning prompt holds: it decodes them before the answer, unheard.
3. `_frames` collects the codes that come back, a frame a step.
4. `_pump` cuts them into chunks (chunking.py) and sends one at a time to Code2Wav, as long as the listener keeps up.
5. `_samples` hands what was decoded to the listener's Stream.
6. The Talker's end sends the last chunk; Code2Wav's end finishes the request.
7. A listener who leaves, a failure, or a dead worker ends it everywhere at once (`_drop`).

One dispatcher takes one message at a time from the inbox (inbox.py: event driven or polling), which keeps the order
within a request. All of it runs on one asyncio loop, so there are no locks.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from pathlib import Path

from ..profiling.metrics import Metrics, merged
from ..profiling.monitor import WINDOW_S, Monitor
from .chunking import Estimate, next_chunk_frames
from .errors import DuotoneError, NotReady, QueueFull, RequestError, StageFailed
from .fleet import Fleet, Launch
from .inbox import EventDrivenInbox, Inbox, PollingInbox
from .messages import Abort, Decode, Exposition, Failed, Frames, Pong, Profiled, Samples, Scrape, Speak
from .pipeline import Pipeline, PipelineOptions
from .profile_control import ProfileControl
from .questions import Questions
from .request import FRAME_BYTES, AbortReason, Request, Stream
from .types import CODEBOOKS, FRAME_S, SAMPLE_BYTES, SAMPLES_PER_FRAME, PromptPlan, Sampling
from .workers import Died, Replica

log = logging.getLogger(__name__)

REFERENCE_GRACE_S = 0.2
"""How long a recording in front of an answer may wait in Code2Wav behind those who listen already."""

SCRAPE_TIMEOUT_S = 1.0
SOON_S = FRAME_S / 2
"""A stream's first chunk is as urgent as one whose listener runs dry in so long."""


class Orchestrator:
    """Runs the pipeline. Everything but the constructor belongs to the event loop that called `start`."""

    def __init__(
        self,
        pipeline: Pipeline,
        checkpoint: Path,
        options: PipelineOptions,
        metrics: Metrics,
        monitor: Monitor,
        launch: Launch | None = None,
    ) -> None:
        """`launch` starts a worker; tests pass their own."""
        self.orchestration = options.orchestration or pipeline.orchestration
        self._options = options
        self._metrics = metrics
        self._monitor = monitor
        self._fleet = Fleet(checkpoint, options, launch)
        self._questions = Questions()
        self.profiling = ProfileControl(self._fleet, self._questions, options)
        self._inbox: Inbox = (EventDrivenInbox if self.orchestration == "event_driven" else PollingInbox)(monitor)
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._keys = itertools.count(1)
        self._decoding = Estimate()
        """From sending a stream's first chunk to its samples: what a chunk that is urgent takes."""
        self._accepting = self._finishing = False
        self._idle = asyncio.Event()
        metrics.requests_waiting.set_function(lambda: len(self._waiting))
        metrics.requests_running.set_function(lambda: len(self._requests) - len(self._waiting))
        metrics.show(monitor)

    # ---- the life of the pipeline

    async def start(self) -> None:
        """Spawn the workers; returns when every one is ready. Raises ConfigurationError or StageFailed."""
        await self._fleet.start()
        for replica in self._fleet.replicas():
            self._metrics.replica(replica.name)
            self._inbox.watch(replica)
        self._spawn(self._dispatch(), "dispatch")
        self._spawn(self._tick(), "monitor")
        self._accepting = True

    async def drain(self, drain_s: float) -> None:
        """Take no more requests but what follows on others, let those in flight end for `drain_s`, then fail them.

        A trace that is being written is in flight too.
        """
        self._accepting, self._finishing = False, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self.profiling.drain()
                if self._requests:
                    self._idle.clear()
                    await self._idle.wait()
        self._finishing = False
        self._questions.close()
        self._fail_all(NotReady("the server is stopping"))

    async def stop(self, drain_s: float) -> None:
        """Drain, then end everything. Safe to call twice."""
        await self.drain(drain_s)
        self._inbox.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fleet.stop()

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        return self._accepting and self._fleet.ready

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run one of the pipeline's own tasks; its failure is a bug and ends the pipeline, never hangs it."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.critical("the task '%s' broke", name, exc_info=error)
                self._accepting = False
                self._fail_all(StageFailed("the orchestrator broke"))

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(done)
        self._tasks.add(task)

    async def _tick(self) -> None:
        """Close the monitor's windows also while nothing happens, and look after workers that say nothing."""
        while True:
            await asyncio.sleep(WINDOW_S)
            self._monitor.advance(time.monotonic())
            self._look_after_silent(WINDOW_S)

    def _look_after_silent(self, more_s: float) -> None:
        """Time has passed: ask, or kill, workers that say nothing."""
        for replica in self._fleet.replicas():
            # One that writes a trace steps no further meanwhile.
            if not self._questions.open(replica, Profiled):
                replica.silent(more_s, self._options.hang_timeout_s)

    # ---- requests in

    def submit(self, request_id: str, plan: PromptPlan, sampling: Sampling, follows: bool = False) -> Stream:
        """Start a request. Raises NotReady, QueueFull, or RequestError when it cannot fit.

        `follows`: it goes on with a text whose beginning was admitted, so it may wait even where the queue is full.
        """
        if not self.ready and not (follows and self._finishing and self._fleet.ready):
            raise NotReady("a stage is not ready")
        positions = plan.positions + sampling.max_new_frames
        if positions > self._options.talker.max_positions:
            raise RequestError(
                f"the prompt's {plan.positions} positions and {sampling.max_new_frames} frames are more than the "
                f"{self._options.talker.max_positions} positions that a request may hold",
                param="max_new_frames" if plan.positions < self._options.talker.max_positions else "input",
            )
        if not follows and len(self._waiting) >= self._options.max_waiting and not self._fleet.free_pair():
            raise QueueFull(f"no more than {self._options.max_waiting} requests may wait", retry_after_s=1)
        request = Request(next(self._keys), request_id, plan, sampling, time.monotonic())
        self._requests[request.key] = request
        self._monitor.requests_in_flight = len(self._requests)
        self._waiting.append(request)
        self._admit()
        return Stream(request, self._options.stall_timeout_s, taken=self._taken, cancelled=self._cancel)

    def _admit(self) -> None:
        """Give slots to those who wait, first come first served."""
        while self._waiting and (pair := self._fleet.free_pair()):
            request = self._waiting.popleft()
            request.talker, request.code2wav = pair
            for replica in pair:
                replica.holds.add(request.key)
            request.admitted_s = time.monotonic()
            self._metrics.queue_wait_s.observe(request.admitted_s - request.submitted_s)
            self._metrics.prompt_tokens.inc(request.plan.tokens)
            pair[0].send(Speak(request.key, request.plan, request.sampling))
            if reference := request.plan.reference_frames:
                request.decoding, request.unheard_frames = True, len(reference) // FRAME_BYTES
                # Nobody hears it: who runs dry sooner goes first.
                pair[1].send(Decode(request.key, reference, False, request.admitted_s + REFERENCE_GRACE_S))

    # ---- what the stages say

    async def _dispatch(self) -> None:
        """Take one message at a time, for ever. Both orchestrations end here."""
        while True:
            replica, event = await self._inbox.next()
            match event:
                case Frames():
                    self._frames(replica, event)
                case Samples():
                    self._samples(replica, event)
                case Failed():
                    for key in event.keys:
                        if request := self._requests.get(key):
                            self._fail(request, StageFailed(f"{replica.name}: {event.message}"))
                case Profiled() | Exposition():
                    self._questions.answered(replica, event)
                case Died():
                    self._died(replica, event.reason)
                case Pong():
                    pass  # To have been heard is all that it is for.

    def _frames(self, replica: Replica, event: Frames) -> None:
        """Collect a frame of each request in the step, and note whom the Talker is done with."""
        self._metrics.replica(replica.name).stepped(event.batch, event.step_s, len(event.keys))
        self._metrics.generated_tokens.inc(CODEBOOKS * len(event.keys))
        replica.steps.observe(event.step_s)
        touched: dict[int, Request] = {}
        for at, key in enumerate(event.keys):
            # A frame of a request that has been aborted may still have been on its way.
            if request := self._requests.get(key):
                request.codes += event.codes[at * FRAME_BYTES : (at + 1) * FRAME_BYTES]
                request.made_frames += 1
                touched[key] = request
        for ended in event.ended:
            if request := self._requests.get(ended.key):
                request.finish_reason = ended.reason
                assert request.talker is not None
                request.talker.holds.discard(request.key)
                touched[ended.key] = request
        self._pump(touched.values())
        self._admit()

    def _pump(self, requests: Iterable[Request]) -> None:
        """Send the next chunks of these requests to Code2Wav, in one message for each replica."""
        now_s = time.monotonic()
        chunks: dict[Replica, list[Decode]] = {}
        for request in requests:
            if chunk := self._next_chunk(request, now_s):
                assert request.code2wav is not None
                chunks.setdefault(request.code2wav, []).append(chunk)
        for replica, decodes in chunks.items():
            replica.send(*decodes)

    def _next_chunk(self, request: Request, now_s: float) -> Decode | None:
        """The next chunk, if there is one worth sending and the listener keeps up."""
        if request.ended or request.decoding or request.closed or request.undelivered_s > self._options.max_buffered_s:
            return None
        assert request.talker is not None
        complete, dry_at_s = request.finish_reason is not None, request.dry_at_s
        frames = next_chunk_frames(
            request.pending_frames,
            spare_s=dry_at_s - now_s - self._decoding.upper_s,
            first=request.sent_frames == 0,
            complete=complete,
            step_s=request.talker.steps.mean_s,
            max_chunk_frames=self._options.code2wav.max_chunk_frames,
        )
        last = complete and frames == request.pending_frames
        if not frames and not last:
            return None
        request.decoding, request.closed, request.sent_s = True, last, now_s
        # A first sound is wanted soon, but a listener about to run dry goes before.
        deadline_s = dry_at_s if request.decoded_frames else now_s + SOON_S
        return Decode(request.key, request.take_codes(frames), last, deadline_s)

    def _samples(self, replica: Replica, event: Samples) -> None:
        """Hand samples to their listeners, and send the next chunks of those whose chunk is done."""
        self._metrics.replica(replica.name).stepped(event.batch, event.step_s, sum(event.frames))
        samples, offset, now_s = memoryview(event.samples), 0, time.monotonic()
        decoded: list[Request] = []
        for key, frames in zip(event.keys, event.frames, strict=True):
            end = offset + frames * SAMPLES_PER_FRAME * SAMPLE_BYTES
            if request := self._requests.get(key):
                self._decoded(request, frames, bytes(samples[offset:end]), now_s)
                decoded.append(request)
            offset = end
        self._pump(decoded)
        for key in event.ended:
            if request := self._requests.get(key):
                self._finish(request)

    def _decoded(self, request: Request, frames: int, samples: bytes, now_s: float) -> None:
        """Count and deliver one stream's samples of a step."""
        if request.unheard_frames:
            request.unheard_frames -= frames
            request.decoding = request.unheard_frames > 0
            return
        if not request.decoded_frames:
            request.first_audio_s = now_s
            self._decoding.observe(now_s - request.sent_s)
            self._metrics.time_to_first_audio_s.observe(now_s - request.submitted_s)
        else:
            self._metrics.chunk_gap_s.observe(now_s - request.last_audio_s)
            underrun_s = max(0.0, now_s - request.dry_at_s)
            request.silent_s += underrun_s
            self._metrics.underrun_s.inc(underrun_s)
        request.last_audio_s = now_s
        request.decoded_frames += frames
        request.decoding = request.decoded_frames < request.sent_frames
        self._metrics.audio_s.inc(frames * FRAME_S)
        request.deliver(samples)

    def _taken(self, request: Request) -> None:
        """A listener took samples: one that was too far behind may be worth a chunk again."""
        self._pump((request,))

    def _died(self, replica: Replica, reason: str) -> None:
        """Fail what the dead worker held, and whoever waits when nobody is left to serve them; start another one."""
        log.error("%s", reason)
        self._questions.lost(replica)
        self._monitor.gone(replica.name)
        stranded = list(replica.holds)
        if not any(other.alive for other in self._fleet.replicas(replica.spec.stage)):
            stranded += [request.key for request in self._waiting]
        for key in stranded:
            # The reason, which may quote our code, is for the log.
            self._fail(self._requests[key], StageFailed(f"{replica.name} has failed and is replaced"))
        self._spawn(self._replace(replica), f"replace {replica.name}")

    async def _replace(self, dead: Replica) -> None:
        """Have the place taken of a dead worker and of those that died with it, and read from the new ones."""
        for replica in await self._fleet.replace(dead):
            log.info("%s: replaced", replica.name)
            self._metrics.replica(replica.name).restarts.inc()
            self._inbox.watch(replica)
        self._admit()

    async def exposition(self) -> str:
        """The metrics that the stages' engines keep themselves, in Prometheus' text format.

        An engine answers between two steps; one that takes too long is left out of the scrape.
        """
        replicas = [replica for replica in self._fleet.replicas() if replica.alive]
        answers = await self._questions.ask(replicas, Scrape(), Exposition, SCRAPE_TIMEOUT_S)
        texts = {replica.name: answer.text for replica, answer in zip(replicas, answers, strict=True) if answer}
        return merged(texts)

    # ---- requests out

    def _finish(self, request: Request) -> None:
        """The last sample has been delivered."""
        assert request.finish_reason is not None
        now_s = time.monotonic()
        self._metrics.request_s.observe(now_s - request.submitted_s)
        if request.made_frames:
            self._metrics.real_time_factor.observe((now_s - request.admitted_s) / (request.made_frames * FRAME_S))
        self._metrics.finished[request.finish_reason].inc()
        self._forget(request)
        request.end()

    def _cancel(self, request: Request, reason: AbortReason) -> None:
        """The listener has left, or is given up."""
        if request.key in self._requests:
            self._metrics.aborted[reason].inc()
            self._metrics.finished["abort"].inc()
            self._drop(request)
            request.end()

    def _fail(self, request: Request, error: DuotoneError) -> None:
        """End a request with an error in front of its listener."""
        log.error("request %s failed: %s", request.request_id, error)
        self._metrics.finished["error"].inc()
        self._drop(request)
        request.end(error)

    def _fail_all(self, error: DuotoneError) -> None:
        for request in list(self._requests.values()):
            self._fail(request, error)

    def _drop(self, request: Request) -> None:
        """Stop the work of a request in both stages."""
        for replica in (request.talker, request.code2wav):
            if replica is not None and request.key in replica.holds:
                replica.send(Abort([request.key]))
        self._forget(request)

    def _forget(self, request: Request) -> None:
        """Give back what a request holds, and let the next one in."""
        del self._requests[request.key]
        self._monitor.requests_in_flight = len(self._requests)
        if request.talker is None:
            self._waiting.remove(request)
        for replica in (request.talker, request.code2wav):
            if replica is not None:
                replica.holds.discard(request.key)
        if not self._requests:
            self._idle.set()
        self._admit()
