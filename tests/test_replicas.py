"""Several workers of a stage, and workers that hang, under the whole server: real processes, each on the CPU."""

import asyncio
import os
import signal
import time

import httpx
import numpy as np
import pytest

from .serving import Server

SPEECH = "/v1/audio/speech"
FRAME_BYTES = 2 * 1920
FRAMES = 12
TWO_PIPELINES = ("--set", "pipeline.talker.devices=[cpu, cpu]", "--set", "pipeline.code2wav.devices=[cpu, cpu]")
WORKERS = ("talker-0", "talker-1", "code2wav-0", "code2wav-1")


@pytest.fixture
def started():
    """`started(*flags)`: a server that is ready, stopped at the end."""
    servers = []

    def start(*flags: str, **env: str) -> Server:
        servers.append(Server(*flags, env=env))
        servers[-1].wait_until_ready()
        return servers[-1]

    yield start
    for server in servers:
        assert server.stop() == 0
        assert server.group() == []


def body(frames: int = FRAMES, **fields) -> dict:
    asked = {"model": "tts-1", "voice": "ada", "input": "Hello there.", "response_format": "pcm", "seed": 5}
    return asked | {"min_new_frames": frames, "max_new_frames": frames} | fields


def pcm(answer: httpx.Response) -> np.ndarray:
    return np.frombuffer(answer.content, "<i2").astype(np.int32)


def by_replica(server: Server, name: str, stage: str) -> list[float]:
    labels = [f'{{model="checkpoint",replica="{replica}",stage="{stage}"}}' for replica in "01"]
    return [server.metric(f"duotone_{name}{of}") for of in labels]


async def test_two_pipelines_share_the_requests_and_say_the_same(started):
    server = started(*TWO_PIPELINES)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        answers = await asyncio.gather(*(client.post(SPEECH, json=body(frames=100)) for _ in range(4)))
    assert {len(answer.content) for answer in answers} == {100 * FRAME_BYTES}
    assert max(abs(pcm(answers[0]) - pcm(other)).max() for other in answers[1:]) <= 1
    for stage in ("talker", "code2wav"):
        made = by_replica(server, "frames_total", stage)
        assert sum(made) == 400
        assert min(made) >= 100


@pytest.mark.parametrize("orchestration", ["1", "0"])
async def test_the_death_of_one_leaves_the_other_serving(started, orchestration):
    server = started(*TWO_PIPELINES, VLLM_OMNI_EVENT_DRIVEN_ORCH=orchestration)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        long = [asyncio.create_task(client.post(SPEECH, json=body(frames=200, stream=False))) for _ in range(2)]
        while min(by_replica(server, "frames_total", "talker")) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        os.kill(server.workers(*WORKERS)["talker-0"], signal.SIGKILL)
        # Only requests that are sent before its end is seen can fail, and the other serves while it is replaced.
        async with asyncio.timeout(10):
            while (answer := await client.post(SPEECH, json=body())).status_code == 503:
                pass
        assert by_replica(server, "worker_restarts_total", "talker") == [0, 0]
        assert len(answer.content) == FRAMES * FRAME_BYTES
        assert (await client.get("/health")).status_code == 200
        assert sorted(answer.status_code for answer in await asyncio.gather(*long)) == [200, 503]
        async with asyncio.timeout(30):
            while by_replica(server, "worker_restarts_total", "talker") != [1, 0]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        # The new one is read from and takes its share.
        before = by_replica(server, "frames_total", "talker")
        await asyncio.gather(*(client.post(SPEECH, json=body(frames=100)) for _ in range(4)))
        after = by_replica(server, "frames_total", "talker")
        assert min(now - then for now, then in zip(after, before, strict=True)) >= 100


async def test_a_hung_worker_is_replaced_long_before_its_requests_give_up_and_an_idle_one_is_left_alone(started):
    server = started("--set", "pipeline.hang_timeout_s=3")
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        await asyncio.sleep(4)
        assert by_replica(server, "worker_restarts_total", "talker")[0] == 0
        speaking = asyncio.create_task(client.post(SPEECH, json=body(frames=3000)))
        while server.metric('duotone_audio_seconds_total{model="checkpoint"}') == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        stopped_s = time.monotonic()
        os.kill(server.workers()["talker"], signal.SIGSTOP)
        with pytest.raises(httpx.RemoteProtocolError):
            await speaking
        assert time.monotonic() - stopped_s < 8
        assert (await client.get("/health")).status_code == 503
        server.wait_until_ready()
        assert len((await client.post(SPEECH, json=body())).content) == FRAMES * FRAME_BYTES
        # Nobody asks for anything, and still it is noticed.
        os.kill(max(server.workers().values()), signal.SIGSTOP)
        async with asyncio.timeout(10):
            while (await client.get("/health")).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        server.wait_until_ready()


def test_a_device_that_is_not_there_ends_the_command_with_one_line_that_names_the_stage(capfd):
    server = Server("--set", "pipeline.code2wav.devices=cuda:7")
    assert server.process.wait(60) == 1
    told = capfd.readouterr().err
    assert "error: code2wav-0: devices: cuda:7: PyTorch sees no such GPU here" in told
    assert "Traceback" not in told
