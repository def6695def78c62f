"""The application: routes, what wraps them, and the pipeline's life around it."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from .. import __version__
from ..profiling.metrics import Metrics
from ..stages.cloning.cloner import Cloner
from ..stages.errors import DuotoneError
from ..stages.orchestrator import Orchestrator
from .catalog import Catalog, catalog_router
from .cloning import Cloning
from .config import Settings
from .errors import answer_error
from .keys import ApiKeys, KeyMiddleware
from .live_speech import LiveSpeech, live_speech_router
from .middleware import BodyLimitMiddleware, EnvelopedCorsMiddleware, HeadMiddleware
from .narration import Narrator, Planner
from .operations import operations_router, profiling_router
from .page import page_routes
from .request_id import REQUEST_ID_HEADER, RequestIdMiddleware
from .speech import speech_router
from .voices import voices_router

log = logging.getLogger(__name__)

_EXPOSED_HEADERS = [REQUEST_ID_HEADER, "X-Audio-Sample-Rate", "X-Audio-Channels", "Retry-After"]


def create_app(
    settings: Settings,
    catalog: Catalog,
    planner: Planner,
    pipeline: Orchestrator,
    metrics: Metrics,
    start_failed: Callable[[DuotoneError], None],
    listener: Cloner | None = None,
) -> FastAPI:
    """The server over a pipeline that is not started yet: the application starts it, and stops it at its own end.

    It answers from the first moment, /health with 503 until the pipeline is ready. `start_failed` is called when the
    pipeline, or the `listener` of a model that clones voices, cannot start; it should end the server. Raises
    ConfigurationError for files of keys or voices that cannot be used.
    """

    keys = ApiKeys(settings.http)
    max_body_bytes = settings.max_body_bytes(recordings=listener is not None)
    # Its threads start with the first answers that need them.
    encoding = ThreadPoolExecutor(settings.http.encoder_threads, thread_name_prefix="encoding")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(_start(pipeline, listener, start_failed), name="start the pipeline")
            try:
                yield
            finally:
                starting.cancel()
                await asyncio.wait([starting])
                await pipeline.stop(settings.http.drain_s)
                if listener is not None:
                    await listener.stop()
                encoding.shutdown(wait=False, cancel_futures=True)

    app = FastAPIOffline(
        redoc_url=None,
        title="Duotone",
        version=__version__,
        description="Text to speech over OpenAI's HTTP interface.",
        lifespan=lifespan,
        redirect_slashes=False,
        # A body without a Content-Type is taken as JSON.
        strict_content_type=False,
        middleware=_middleware(settings, keys, max_body_bytes),
        exception_handlers=dict.fromkeys(
            (RequestValidationError, HTTPException, DuotoneError, Exception), answer_error
        ),
    )
    # For /docs; KeyMiddleware is what refuses.
    locked = [Depends(HTTPBearer(auto_error=False, description="one of the server's keys"))] if keys.needed else []
    cloning = Cloning(settings, catalog, listener)
    narrator = Narrator(settings, catalog, cloning, planner, pipeline)
    app.include_router(speech_router(narrator, settings.http, encoding), dependencies=locked)
    app.include_router(live_speech_router(LiveSpeech(narrator, settings, keys, encoding, max_body_bytes)))
    app.include_router(catalog_router(catalog))
    app.include_router(voices_router(cloning, locked))
    app.include_router(operations_router(pipeline, metrics))
    app.include_router(profiling_router(pipeline.profiling), dependencies=locked)
    app.routes.extend(page_routes())
    return app


def _middleware(settings: Settings, keys: ApiKeys, max_body_bytes: int) -> list[Middleware]:
    """From the outermost on: every answer has a request id, pages may read refusals, strangers send no body."""
    return [
        Middleware(RequestIdMiddleware),
        Middleware(
            EnvelopedCorsMiddleware,
            allow_origins=settings.http.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
        ),
        Middleware(KeyMiddleware, keys=keys),
        Middleware(HeadMiddleware),
        Middleware(BodyLimitMiddleware, max_bytes=max_body_bytes, timeout_s=settings.http.body_timeout_s),
    ]


async def _start(pipeline: Orchestrator, listener: Cloner | None, failed: Callable[[DuotoneError], None]) -> None:
    begun_s = time.monotonic()
    try:
        if listener is not None:
            await listener.start()
        await pipeline.start()
        gc.collect()
        gc.freeze()  # What is here to stay: a collector that visits it all again and again makes listeners wait.
        log.info("ready to speak after %.1f s", time.monotonic() - begun_s)
    except DuotoneError as error:
        failed(error)
