"""What a server says of itself at /metrics: how busy its stages were between two readings."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_STEP_S, _STEPS, _BATCHES = "duotone_step_seconds_sum", "duotone_step_seconds_count", "duotone_batch_size_sum"


@dataclass(frozen=True)
class StageLoad:
    """What one worker of the server did between two readings."""

    replica: str
    """`talker-0`"""
    busy_share: float
    """Of the time, in steps of its engine."""
    step_ms: float | None
    """The mean; None without a step, as the next."""
    batch: float | None
    """Requests in a step, the mean."""


async def scraped(session: aiohttp.ClientSession) -> list[Sample]:
    """Every sample of the server's metrics; none where it has no metrics or does not answer."""
    try:
        async with session.get("/metrics", raise_for_status=True) as answer:
            families: Iterable[Metric] = text_string_to_metric_families(await answer.text())
            return [sample for family in families for sample in family.samples]
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return []


def stage_loads(before: list[Sample], after: list[Sample], wall_s: float) -> list[StageLoad]:
    """Each worker, in the server's order, in `wall_s` between two readings; none for another kind of server."""
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for sign, samples in ((-1, before), (1, after)):
        for sample in samples:
            if sample.name in (_STEP_S, _STEPS, _BATCHES):
                replica = f"{sample.labels['stage']}-{sample.labels['replica']}"
                sums[replica][sample.name] += sign * sample.value
    return [
        StageLoad(
            replica,
            busy_share=of[_STEP_S] / wall_s,
            step_ms=1e3 * of[_STEP_S] / of[_STEPS] if of[_STEPS] else None,
            batch=of[_BATCHES] / of[_STEPS] if of[_STEPS] else None,
        )
        for replica, of in sums.items()
    ]
