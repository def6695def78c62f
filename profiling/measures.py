"""What a load generator's records say: from times of arrival and byte counts to figures. Pure functions.

Times are `time.monotonic()` seconds. The audio is s16le mono at 24 kHz, the `pcm` of OpenAI's interface.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SAMPLE_BYTES = 2
SAMPLE_RATE = 24_000
SAMPLES_PER_FRAME = 1_920


@dataclass(slots=True)
class Record:
    """One request as its client saw it. `failure` says in few words why the answer is no good."""

    index: int
    sent_s: float
    ended_s: float = 0.0
    status: int | None = None
    failure: str | None = None
    arrivals_s: list[float] = field(default_factory=list)
    """When each chunk of the body had arrived."""
    chunk_bytes: list[int] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Whole samples received."""
        return sum(self.chunk_bytes) // SAMPLE_BYTES

    @property
    def audio_s(self) -> float:
        """Seconds of audio received."""
        return self.samples / SAMPLE_RATE

    @property
    def elapsed_s(self) -> float:
        """From sending the request to the end of the answer."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True)
class Distribution:
    """Values of one kind, in their own unit; percentiles are interpolated linearly between neighbours."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Summary:
    """All that a load of so many concurrent streams showed. What has no value, without an answer, is None."""

    streams: int
    requests: int
    completed: int
    failures: dict[str, int]
    """Reason → requests."""
    warmup_failures: dict[str, int]
    wall_s: float
    """From the first request sent to the last answer's end."""
    requests_per_s: float
    audio_s_per_s: float
    first_audio_s: Distribution | None
    end_to_end_s: Distribution | None
    gap_s: Distribution | None
    """Between neighbouring chunks of an answer, over all answers."""
    real_time_factor: Distribution | None
    """Seconds from request to end over seconds of audio, by answer."""
    dry_listeners: int
    """Of those who played from the first chunk on, how many had to wait for more."""
    underrun_s: float
    """How long they waited in all."""
    continuity: float | None
    """Share of the listeners that never ran dry."""
    inexact: int | None
    """Completed answers that have not the number of samples asked for; None where none was."""
    client_cores: float
    """CPU seconds a second of the load generator itself."""


def distribution(values: Iterable[float]) -> Distribution | None:
    """None where there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    # A single value is all of them; quantiles wants two.
    percentiles = statistics.quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else ordered * 99
    p50, p90, p99 = (percentiles[percent - 1] for percent in (50, 90, 99))
    return Distribution(statistics.fmean(ordered), p50, p90, p99, ordered[-1])


def underrun_s(arrivals_s: Sequence[float], chunk_bytes: Sequence[int]) -> float:
    """How long a listener who plays from the first chunk on stands without audio, in all, before the last chunk."""
    waited_s = 0.0
    dry_at_s = arrivals_s[0] if arrivals_s else 0.0
    for arrived_s, size in zip(arrivals_s, chunk_bytes, strict=True):
        if arrived_s > dry_at_s:
            waited_s += arrived_s - dry_at_s
            dry_at_s = arrived_s
        dry_at_s += size / SAMPLE_BYTES / SAMPLE_RATE
    return waited_s


def flaw(chunk_bytes: Sequence[int]) -> str | None:
    """Why a body that arrived whole is still no answer, or None."""
    if not sum(chunk_bytes):
        return "no audio"
    if sum(chunk_bytes) % SAMPLE_BYTES:
        return "half a sample"
    return None


def failures(records: Iterable[Record]) -> dict[str, int]:
    """How many requests failed for which reason, the most frequent first."""
    return dict(Counter(record.failure for record in records if record.failure is not None).most_common())


def summarise(
    records: Sequence[Record], warmup: Sequence[Record], streams: int, frames: int | None, client_cpu_s: float
) -> Summary:
    """The figures of one load, of at least one record. `frames`: the length that every answer was asked to have."""
    wall_s = max(record.ended_s for record in records) - min(record.sent_s for record in records)
    good = [record for record in records if record.failure is None]
    waits_s = [underrun_s(record.arrivals_s, record.chunk_bytes) for record in good]
    dry = sum(wait_s > 0 for wait_s in waits_s)
    inexact = None if frames is None else sum(record.samples != frames * SAMPLES_PER_FRAME for record in good)
    return Summary(
        streams=streams,
        requests=len(records),
        completed=len(good),
        failures=failures(records),
        warmup_failures=failures(warmup),
        wall_s=wall_s,
        requests_per_s=len(good) / wall_s,
        audio_s_per_s=sum(record.audio_s for record in good) / wall_s,
        first_audio_s=distribution(record.arrivals_s[0] - record.sent_s for record in good),
        end_to_end_s=distribution(record.elapsed_s for record in good),
        gap_s=distribution(later - sooner for record in good for sooner, later in pairwise(record.arrivals_s)),
        real_time_factor=distribution(record.elapsed_s / record.audio_s for record in good),
        dry_listeners=dry,
        underrun_s=sum(waits_s),
        continuity=1 - dry / len(good) if good else None,
        inexact=inexact,
        client_cores=client_cpu_s / wall_s,
    )
