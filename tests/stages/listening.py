"""Asks an orchestrator for speech as the server does, and listens to it."""

from duotone.stages.types import SAMPLES_PER_FRAME, PromptPlan, Sampling

PLAN = PromptPlan(rows=bytes(68 * 10))
FRAME_BYTES = 2 * SAMPLES_PER_FRAME


def submit(orchestrator, **sampling):
    return orchestrator.submit("r", PLAN, Sampling(seed=1, **sampling))


async def listen(stream) -> bytes:
    return b"".join([samples async for samples in stream])


def finished(orchestrator) -> dict[str, float]:
    value = orchestrator._metrics.registry.get_sample_value
    reasons = ("stop", "length", "abort", "error")
    return {r: n for r in reasons if (n := value("duotone_requests_finished_total", {"model": "test", "reason": r}))}
