"""The application over a fake pipeline: in process (`client`), and behind a real socket (`live`, `session`)."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect

from duotone.profiling.metrics import Metrics
from duotone.server.app import create_app
from duotone.server.catalog import Catalog, Model
from duotone.server.config import HttpOptions, Settings, TextOptions
from duotone.server.http_protocol import protocols
from duotone.stages.types import Sampling

from .fake_pipeline import FakePipeline, plan_of
from .live_client import Client

MODEL = Model(
    voices=("Vivian", "ryan"),
    languages=("english", "chinese"),
    takes_instructions=True,
    sampling=Sampling(seed=0, temperature=0.8, top_k=40),
)
SETTINGS = Settings(
    model="/models/robin",
    http=HttpOptions(cors_origins=("http://page.example",), send_timeout_s=5),
    text=TextOptions(max_piece_chars=40, pause_s=0),
)


@pytest.fixture
def model() -> Model:
    return MODEL


@pytest.fixture
def settings() -> Settings:
    return SETTINGS


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def start_failures() -> list:
    return []


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("robin")


@pytest.fixture
def app(settings, model, pipeline, metrics, start_failures):
    return create_app(settings, Catalog(settings, model), plan_of, pipeline, metrics, start_failures.append)


@pytest.fixture
async def client(app) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@asynccontextmanager
async def listening(app, send_timeout_s: float = 60.0) -> AsyncIterator[int]:
    """A real server for the application on a free loopback port."""
    http, ws = protocols(send_timeout_s)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=http, ws=ws, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


@pytest.fixture
async def port(app, settings) -> AsyncIterator[int]:
    async with listening(app, settings.http.send_timeout_s) as port:
        yield port


@pytest.fixture
async def live(port) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as client:
        yield client


@pytest.fixture
def opening(port):
    @asynccontextmanager
    async def opening(**options) -> AsyncIterator[Client]:
        url = f"ws://127.0.0.1:{port}/v1/audio/speech/stream"
        async with connect(url, proxy=None, compression=None, **options) as connection:
            yield Client(connection)

    return opening


@pytest.fixture
def session(opening):
    @asynccontextmanager
    async def session(**fields) -> AsyncIterator[Client]:
        async with opening() as client:
            await client.say("session", **{"model": "tts-1"} | fields)
            assert (await client.next())["type"] == "ready"
            yield client

    return session


@pytest.fixture
def ask():
    """A body for the speech route: a plain request with these fields over it."""

    def body(**fields) -> dict:
        return {"model": "tts-1", "voice": "alloy", "input": "Hello."} | fields

    return body
