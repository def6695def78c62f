"""What operators scrape: every metric of the server in one registry, with the model's name as a constant label."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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

FINISH_REASONS = ("stop", "length", "abort", "error")
ABORT_REASONS = ("disconnect", "slow_client", "cancel", "stall")


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
        self._requests()
        self._listeners()
        self._workers = self._worker_metrics()
        self._replicas: dict[str, ReplicaMetrics] = {}
        build = Gauge("duotone_build_info", "1, with what runs as labels", ("model", "version"), registry=self.registry)
        build.labels(model, __version__).set(1)

    def _requests(self) -> None:
        self.requests_running = self._gauge("duotone_requests_running", "Requests that hold a slot in a stage")
        self.requests_waiting = self._gauge("duotone_requests_waiting", "Requests that wait for a slot")
        self.finished = self._counters(
            "duotone_requests_finished", "Requests that ended, by reason", "reason", FINISH_REASONS
        )
        self.aborted = self._counters(
            "duotone_streams_aborted", "Streams given up before their end, by reason", "reason", ABORT_REASONS
        )
        self.request_s = self._histogram(
            "duotone_request_seconds", "From the arrival of a request to its last samples", _SECONDS
        )
        self.queue_wait_s = self._histogram(
            "duotone_queue_wait_seconds", "From the arrival of a request to its slot", _SECONDS
        )
        self.prompt_tokens = self._counter("duotone_prompt_tokens", "Prompt positions of admitted requests")
        self.generated_tokens = self._counter("duotone_generated_tokens", "Codec codes made, 16 a frame")

    def _listeners(self) -> None:
        self.time_to_first_audio_s = self._histogram(
            "duotone_time_to_first_audio_seconds", "From the arrival of a request to its first samples", _SECONDS
        )
        self.chunk_gap_s = self._histogram(
            "duotone_inter_chunk_seconds", "Between two chunks of samples of a stream", _SECONDS
        )
        self.real_time_factor = self._histogram(
            "duotone_real_time_factor", "Time from a slot to the last samples, over the seconds of audio", _RATIOS
        )
        self.audio_s = self._counter("duotone_audio_seconds", "Seconds of audio made")
        self.underrun_s = self._counter(
            "duotone_underrun_seconds", "Silence heard by listeners who start with the first byte"
        )

    def _worker_metrics(self) -> ReplicaMetrics:
        """Those of all workers; each has its own by its labels."""
        labels = ("model", "stage", "replica")
        step, batch = "One step of a stage's engine", "Requests in one step of a stage's engine"
        restarts = "Workers started in the place of a dead one"
        return ReplicaMetrics(
            Counter("duotone_frames", "Frames made", labels, registry=self.registry),
            Histogram("duotone_step_seconds", step, labels, registry=self.registry, buckets=_STEP_SECONDS),
            Histogram("duotone_batch_size", batch, labels, registry=self.registry, buckets=_BATCHES),
            Counter("duotone_worker_restarts", restarts, labels, registry=self.registry),
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

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("model",), registry=self.registry).labels(self._model)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model",), registry=self.registry).labels(self._model)

    def _counters(self, name: str, text: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        """One counter per value of a label, all shown from the start."""
        counter = Counter(name, text, ("model", label), registry=self.registry)
        return {value: counter.labels(self._model, value) for value in values}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("model",), registry=self.registry, buckets=buckets).labels(self._model)

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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(families)))
    return generate_latest(registry).decode()


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
        self.monitor.advance(time.monotonic())
        per_model, per_replica = ("model",), ("model", "stage", "replica")
        depth = GaugeMetricFamily(
            "duotone_dispatch_queue_depth", "Messages that wait for the dispatcher", labels=per_model
        )
        depth.add_metric((self.model,), self.monitor.dispatch.depth)
        high_water = GaugeMetricFamily(
            "duotone_dispatch_queue_high_water",
            "Most messages that waited at once, largest of the last 60 seconds",
            labels=per_model,
        )
        high_water.add_metric((self.model,), self.monitor.recent_high_water())
        output_depth = GaugeMetricFamily(
            "duotone_output_queue_depth", "Messages of a replica that wait for the dispatcher", labels=per_replica
        )
        output_high_water = GaugeMetricFamily(
            "duotone_output_queue_high_water",
            "Most messages of a replica that waited at once, largest of the last 60 seconds",
            labels=per_replica,
        )
        for name, queue in self.monitor.outputs.items():
            labels = (self.model, *name.rsplit("-", 1))
            output_depth.add_metric(labels, queue.depth)
            output_high_water.add_metric(labels, self.monitor.recent_high_water(name))
        turns = CounterMetricFamily(
            "duotone_orchestrator_turns", "Turns of the dispatcher's loop", labels=("model", "state")
        )
        for state, count in self.monitor.total_turns.items():
            turns.add_metric((self.model, state), count)
        yield from (depth, high_water, output_depth, output_high_water, turns)
