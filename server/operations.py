"""Routes for operators: probes, metrics, and profiling where it is configured."""

import asyncio

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..profiling.metrics import Metrics
from ..stages.errors import NotReady
from ..stages.orchestrator import Orchestrator
from ..stages.profile_control import ProfileControl
from .connection import until_gone
from .errors import ERROR_RESPONSES, ClientGone
from .protocol import Health, ProfileRequest, ProfileStarted, ProfileStopped


def operations_router(pipeline: Orchestrator, metrics: Metrics) -> APIRouter:
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

    @router.get(
        "/metrics",
        summary="For Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def exposition() -> Response:
        text = metrics.exposition() + (await pipeline.exposition()).encode()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router


def profiling_router(profiling: ProfileControl) -> APIRouter:
    """The two routes that open and close a profiling window of running stages; none where it is not configured."""
    router = APIRouter(tags=["operations"])
    if not profiling.stages:
        return router

    @router.post("/start_profile", summary="Profile running stages", responses=ERROR_RESPONSES)
    async def start_profile(request: Request, body: ProfileRequest | None = None) -> ProfileStarted:
        """Answers when every worker of the stages records (or counts down its `delay_iterations`)."""
        stages = body.stages if body else None
        starting = asyncio.create_task(profiling.start(stages))
        try:
            return ProfileStarted(replicas=await until_gone(request.receive, asyncio.shield(starting)))
        except ClientGone:
            # Nobody knows that it runs, so nobody would stop it.
            await starting
            await profiling.stop(stages)
            raise

    @router.post("/stop_profile", summary="End profiling, write the traces", responses=ERROR_RESPONSES)
    async def stop_profile(body: ProfileRequest | None = None) -> ProfileStopped:
        """Answers when the traces are written, and names them."""
        return ProfileStopped(files=await profiling.stop(body.stages if body else None))

    return router
