"""What operators scrape: every metric of the server in one registry, with the model's name as a constant label."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .monitor import Monitor

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 5)

FINISH_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """The server's metrics. One per server; only the API process's event loop writes to it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model",), registry=self.registry).labels(model)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ("model",), registry=self.registry, buckets=buckets).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("model",), registry=self.registry).labels(model)

        self.requests_running = gauge("duotone_requests_running", "Requests that hold a slot in a stage")
        self.requests_waiting = gauge("duotone_requests_waiting", "Requests that wait for a slot")
        finished = Counter(
            "duotone_requests_finished", "Requests that ended, by reason", ("model", "reason"), registry=self.registry
        )
        self.finished = {reason: finished.labels(model, reason) for reason in FINISH_REASONS}
        restarts = Counter(
            "duotone_worker_restarts",
            "Workers started in the place of a dead one",
            ("model", "stage"),
            registry=self.registry,
        )
        self.worker_restarts = {stage: restarts.labels(model, stage) for stage in ("talker", "code2wav")}
        self.audio_s = counter("duotone_audio_seconds", "Seconds of audio made")
        self.time_to_first_audio_s = histogram(
            "duotone_time_to_first_audio_seconds", "From the arrival of a request to its first samples", _SECONDS
        )
        self.request_s = histogram(
            "duotone_request_seconds", "From the arrival of a request to its last samples", _SECONDS
        )
        self.real_time_factor = histogram(
            "duotone_real_time_factor", "Time from a slot to the last samples, over the seconds of audio", _RATIOS
        )

    def show(self, monitor: Monitor) -> None:
        """Read the orchestrator's queues and turns from its monitor at each scrape."""
        self.registry.register(_MonitorCollector(self._model, monitor))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


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
