"""One running server for the clients that people use. Its texts' lengths bound the answers, as no client can."""

import pytest

from ..serving import Server

FLAGS = ("--set", "text.frames_base=4", "--set", "text.frames_per_char=1")


@pytest.fixture(scope="module")
def server():
    running = Server(*FLAGS)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture
def base_url(server) -> str:
    return f"{server.url}/v1"


@pytest.fixture
def spoken_samples(server):
    """How many samples at 24 kHz the server has made since the test began."""

    def frames() -> float:
        return server.metric('duotone_frames_total{model="checkpoint",replica="0",stage="code2wav"}')

    before = frames()
    return lambda: round(frames() - before) * 1920
