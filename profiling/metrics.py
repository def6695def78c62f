"""What operators scrape: every metric of the server in one registry, with the model's name as a constant label."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from .. import __version__
from .monitor import Monitor

# A series more for each counter that says when it was made: nobody asks for it.
disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_STEP_SECONDS = (0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 5)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512)

_REPLICA = ("stage", "replica")
_Metric = TypeVar("_Metric", bound=MetricWrapperBase)

FINISH_REASONS = ("stop", "length", "abort", "error")
ABORT_REASONS = ("disconnect", "slow_client", "cancel", "stall", "limit", "failure")


@dataclass(frozen=True)
class ReplicaMetrics:
    """What one worker process does."""

    frames: Counter
    step_s: Histogram
    batch: Histogram
    restarts: Counter

    def stepped(self, batch: int, step_s: float, frames: int) -> None:
        """Its engine did a step."""
        self.step_s.observe(step_s)
        self.batch.observe(batch)
        self.frames.inc(frames)


class Metrics:
    """The server's metrics. One per server; only the API process's event loop writes to it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.registry = CollectorRegistry()
        self.requests_running = self._one(Gauge, "requests_running", "Requests that hold a slot in a stage")
        self.requests_waiting = self._one(Gauge, "requests_waiting", "Requests that wait for a slot")
        self.finished = self._by_reason("requests_finished", "Requests that ended, by reason", FINISH_REASONS)
        self.aborted = self._by_reason("streams_aborted", "Streams given up before their end, by reason", ABORT_REASONS)
        self.request_s = self._seconds("request_seconds", "From the arrival of a request to its last samples")
        self.queue_wait_s = self._seconds("queue_wait_seconds", "From the arrival of a request to its slot")
        self.prompt_tokens = self._one(Counter, "prompt_tokens", "Prompt positions of admitted requests")
        self.generated_tokens = self._one(Counter, "generated_tokens", "Codec codes made, 16 a frame")
        self.time_to_first_audio_s = self._seconds(
            "time_to_first_audio_seconds", "From the arrival of a request to its first samples"
        )
        self.chunk_gap_s = self._seconds("inter_chunk_seconds", "Between two chunks of samples of a stream")
        of_audio = "Time from a slot to the last samples, over the seconds of audio"
        self.real_time_factor = self._one(partial(Histogram, buckets=_RATIOS), "real_time_factor", of_audio)
        self.audio_s = self._one(Counter, "audio_seconds", "Seconds of audio made")
        silence = "Silence heard by listeners who start with the first byte"
        self.underrun_s = self._one(Counter, "underrun_seconds", silence)
        self._workers = self._worker_metrics()
        self._replicas: dict[str, ReplicaMetrics] = {}
        self._all(Gauge, "build_info", "1, with what runs as labels", "version").labels(model, __version__).set(1)

    def _all(self, kind: Callable[..., _Metric], name: str, text: str, *labels: str) -> _Metric:
        """A metric whose labels are still to be filled in."""
        return kind(name, text, ("model", *labels), namespace="duotone", registry=self.registry)

    def _one(self, kind: Callable[..., _Metric], name: str, text: str) -> _Metric:
        return self._all(kind, name, text).labels(self._model)

    def _seconds(self, name: str, text: str) -> Histogram:
        return self._one(partial(Histogram, buckets=_SECONDS), name, text)

    def _by_reason(self, name: str, text: str, reasons: tuple[str, ...]) -> dict[str, Counter]:
        """One counter for each, all shown from the start."""
        counter = self._all(Counter, name, text, "reason")
        return {reason: counter.labels(self._model, reason) for reason in reasons}

    def _worker_metrics(self) -> ReplicaMetrics:
        """Those of all workers; each has its own by its labels."""
        step, batch = partial(Histogram, buckets=_STEP_SECONDS), partial(Histogram, buckets=_BATCHES)
        return ReplicaMetrics(
            self._all(Counter, "frames", "Frames made", *_REPLICA),
            self._all(step, "step_seconds", "One step of a stage's engine", *_REPLICA),
            self._all(batch, "batch_size", "Requests in one step of a stage's engine", *_REPLICA),
            self._all(Counter, "worker_restarts", "Workers started in the place of a dead one", *_REPLICA),
        )

    def replica(self, name: str) -> ReplicaMetrics:
        """Those of the worker that is called so (`talker-0`), shown from the first time on."""
        if name not in self._replicas:
            labels, all_of = (self._model, *name.rsplit("-", 1)), self._workers
            self._replicas[name] = ReplicaMetrics(
                all_of.frames.labels(*labels),
                all_of.step_s.labels(*labels),
                all_of.batch.labels(*labels),
                all_of.restarts.labels(*labels),
            )
        return self._replicas[name]

    def show(self, monitor: Monitor) -> None:
        """Read the orchestrator's queues and turns from its monitor at each scrape."""
        self.registry.register(_MonitorCollector(self._model, monitor))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def merged(expositions: Mapping[str, str]) -> str:
    """What several workers expose of themselves, by their names, as one: a family once, with labels that tell whose."""
    families: dict[str, Metric] = {}
    for name, text in expositions.items():
        labels = dict(zip(("stage", "replica"), name.rsplit("-", 1), strict=True))
        for family in text_string_to_metric_families(text):
            all_of = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            all_of.samples += [sample._replace(labels=sample.labels | labels) for sample in family.samples]
    return exposed(families.values())


def exposed(families: Iterable[Metric]) -> str:
    """Families that were collected elsewhere, in Prometheus' text format."""
    return generate_latest(_Collected(list(families))).decode()


@dataclass(frozen=True, eq=False)
class _Collected(Collector):
    families: list[Metric]

    def collect(self) -> list[Metric]:
        """As they are."""
        return self.families


@dataclass(frozen=True, eq=False)
class _MonitorCollector(Collector):
    """The monitor's state as metrics, made when they are scraped."""

    model: str
    monitor: Monitor

    def collect(self) -> Iterator[Metric]:
        """The dispatch queue, every replica's output queue, the loop's turns."""
        monitor, outputs = self.monitor, self.monitor.outputs
        monitor.advance(time.monotonic())
        of = {name: tuple(name.rsplit("-", 1)) for name in outputs}
        text = "Messages that wait for the dispatcher"
        yield self._gauge("dispatch_queue_depth", text, (), {(): monitor.dispatch.size})
        text = "Most messages that waited at once, largest of the last 60 seconds"
        yield self._gauge("dispatch_queue_high_water", text, (), {(): monitor.recent_high_water()})
        text = "Messages of a replica that wait for the dispatcher"
        depths = {of[name]: queue.size for name, queue in outputs.items()}
        yield self._gauge("output_queue_depth", text, _REPLICA, depths)
        text = "Most messages of a replica that waited at once, largest of the last 60 seconds"
        marks = {of[name]: monitor.recent_high_water(name) for name in outputs}
        yield self._gauge("output_queue_high_water", text, _REPLICA, marks)
        turns = CounterMetricFamily(
            "duotone_orchestrator_turns", "Turns of the dispatcher's loop", labels=("model", "state")
        )
        for state, count in monitor.total_turns.items():
            turns.add_metric((self.model, state), count)
        yield turns

    def _gauge(
        self, name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"duotone_{name}", text, labels=("model", *labels))
        for of, value in values.items():
            family.add_metric((self.model, *of), value)
        return family
