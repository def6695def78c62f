"""What operators scrape: every metric of the server in one registry, with the model's name as a constant label."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 5)

FINISH_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """The server's metrics. One per server; only the API process's event loop writes to it."""

    def __init__(self, model: str) -> None:
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

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
