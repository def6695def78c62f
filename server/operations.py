"""Routes for operators: probes and metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..profiling.metrics import Metrics
from ..stages.errors import NotReady
from .errors import ERROR_RESPONSES
from .narration import SpeechPipeline
from .protocol import Health


def operations_router(pipeline: SpeechPipeline, metrics: Metrics) -> APIRouter:
    """The probes need no key."""
    router = APIRouter(tags=["operations"])

    @router.get("/health", summary="Whether requests are served now", responses={503: ERROR_RESPONSES["5XX"]})
    async def health() -> Health:
        if not pipeline.ready:
            raise NotReady("a stage is starting, draining or dead")
        return Health()

    @router.get("/live", summary="Whether the process runs")
    async def live() -> Health:
        return Health()

    @router.get("/metrics", summary="For Prometheus", response_class=Response)
    async def exposition() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router
