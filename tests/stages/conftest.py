"""A pipeline over scripted stages, under both orchestrations."""

from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duotone.profiling.metrics import Metrics
from duotone.profiling.monitor import Monitor
from duotone.stages.orchestrator import Orchestrator
from duotone.stages.pipeline import PIPELINES, PipelineOptions

from .fake_stage import FakeStages


@pytest.fixture(params=["event_driven", "polling"])
def pipeline(request):
    """`async with pipeline(stages, **options) as orchestrator`; every test runs under both orchestrations."""

    @asynccontextmanager
    async def run(stages: FakeStages, **options):
        orchestrator = Orchestrator(
            PIPELINES["qwen3_tts"],
            Path("checkpoint"),
            PipelineOptions(orchestration=request.param, **options),
            Metrics("test"),
            Monitor(),
            launch=stages.launch,
        )
        await orchestrator.start()
        try:
            yield orchestrator
        finally:
            await orchestrator.stop(drain_s=0)

    return run
