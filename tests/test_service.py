"""The whole server as its users run it: `duotone serve` on the small golden checkpoint, real workers, real sockets."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from .serving import Server

SAMPLES_PER_FRAME = 1920
FRAMES = 12
SPEECH = "/v1/audio/speech"


@pytest.fixture(scope="module")
def server():
    running = Server()
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def body(**fields) -> dict:
    return {
        "model": "tts-1",
        "voice": "ada",
        "input": "Hello there.",
        "response_format": "pcm",
        "seed": 5,
        "min_new_frames": FRAMES,
        "max_new_frames": FRAMES,
        **fields,
    }


def pcm(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<i2").astype(np.int32)


async def speak(client: httpx.AsyncClient, **fields) -> np.ndarray:
    response = await client.post(SPEECH, json=body(**fields))
    assert response.status_code == 200, response.text
    return pcm(response.content)


@pytest.mark.parametrize("streams", [1, 8])
async def test_a_streamed_answer_equals_the_complete_one_whatever_else_runs(server, streams):
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        complete = [await speak(client, seed=seed, stream=False) for seed in range(streams)]
        streamed = await asyncio.gather(*(speak(client, seed=seed) for seed in range(streams)))
    for one, other in zip(complete, streamed, strict=True):
        assert len(one) == len(other) == FRAMES * SAMPLES_PER_FRAME
        assert abs(one - other).max() <= 1
    if streams > 1:
        assert abs(complete[0] - complete[1]).max() > 1


async def spoken_until(socket, type: str) -> np.ndarray:
    """The samples of a live session up to an event."""
    audio = bytearray()
    async for message in socket:
        if isinstance(message, bytes):
            audio += message
        elif json.loads(message)["type"] == type:
            return pcm(audio)
    pytest.fail(f"the session closed before {type}")


async def test_a_live_session_speaks_its_tokens_as_a_request_its_text_and_stops_when_it_is_told(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        asked = await speak(client)
    url = server.url.replace("http", "ws") + SPEECH + "/stream"
    async with asyncio.timeout(60), connect(url, proxy=None) as socket:
        await socket.send(json.dumps(body(type="session")))
        for sign in "Hello there.":
            await socket.send(json.dumps({"type": "text", "text": sign}))
        await socket.send('{"type": "flush"}')
        told = await spoken_until(socket, "flushed")
        await socket.send('{"type": "text", "text": "This is cut off. And so is that."}')
        await socket.send('{"type": "cancel"}')
        assert len(await spoken_until(socket, "cancelled")) < 2 * FRAMES * SAMPLES_PER_FRAME
        while server.metric('duotone_requests_running{model="checkpoint"}'):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await socket.send('{"type": "end"}')
        assert len(await spoken_until(socket, "done")) == 0
    assert len(told) == len(asked) == FRAMES * SAMPLES_PER_FRAME
    assert abs(told - asked).max() <= 1


async def test_fifty_clients_that_leave_after_a_kilobyte_leave_nothing_behind(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        before = server.metric('duotone_requests_finished_total{model="checkpoint",reason="abort"}')

        async def leave() -> None:
            async with client.stream("POST", SPEECH, json=body(min_new_frames=500, max_new_frames=500)) as response:
                assert response.status_code == 200
                got = 0
                async for chunk in response.aiter_raw():
                    got += len(chunk)
                    if got >= 1024:
                        return

        for _ in range(5):
            await asyncio.gather(*(leave() for _ in range(10)))
        async with asyncio.timeout(10):
            while server.metric('duotone_requests_running{model="checkpoint"}'):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert server.metric('duotone_requests_waiting{model="checkpoint"}') == 0
        after = server.metric('duotone_requests_finished_total{model="checkpoint",reason="abort"}')
        assert after - before == 50
        assert len(await speak(client)) == FRAMES * SAMPLES_PER_FRAME


async def test_every_metric_of_a_request_moves(server):
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        await speak(client)
    for name in (
        'requests_finished_total{model="checkpoint",reason="length"}',
        'request_seconds_count{model="checkpoint"}',
        'queue_wait_seconds_count{model="checkpoint"}',
        'time_to_first_audio_seconds_count{model="checkpoint"}',
        'inter_chunk_seconds_count{model="checkpoint"}',
        'real_time_factor_count{model="checkpoint"}',
        'audio_seconds_total{model="checkpoint"}',
        'prompt_tokens_total{model="checkpoint"}',
        'generated_tokens_total{model="checkpoint"}',
        'frames_total{model="checkpoint",replica="0",stage="talker"}',
        'frames_total{model="checkpoint",replica="0",stage="code2wav"}',
        'step_seconds_count{model="checkpoint",replica="0",stage="talker"}',
        'batch_size_count{model="checkpoint",replica="0",stage="code2wav"}',
        'dispatch_queue_high_water{model="checkpoint"}',
        'output_queue_high_water{model="checkpoint",replica="0",stage="talker"}',
        'orchestrator_turns_total{model="checkpoint",state="active"}',
    ):
        assert server.metric(f"duotone_{name}") > 0, name


@pytest.mark.parametrize("orchestration", ["1", "off"])
async def test_a_killed_worker_fails_its_requests_and_is_replaced_and_nothing_outlives_the_server(orchestration):
    server = Server(env={"VLLM_OMNI_EVENT_DRIVEN_ORCH": orchestration})
    try:
        server.wait_until_ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            long = body(min_new_frames=3000, max_new_frames=3000)
            streamed = asyncio.create_task(client.post(SPEECH, json=long))
            complete = asyncio.create_task(client.post(SPEECH, json={**long, "stream": False}))
            while server.metric('duotone_audio_seconds_total{model="checkpoint"}') == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            os.kill(server.workers()["talker"], signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                await streamed
            failed = await complete
            assert failed.status_code == 503
            assert failed.json()["error"]["code"] == "pipeline_failed"
            assert (await client.get("/health")).status_code == 503
            assert (await client.post(SPEECH, json=body())).status_code == 503
            server.wait_until_ready()
            assert len(await speak(client)) == FRAMES * SAMPLES_PER_FRAME
            assert server.metric('duotone_worker_restarts_total{model="checkpoint",replica="0",stage="talker"}') == 1
    finally:
        assert server.stop() == 0
        assert server.group() == []


def test_workers_end_with_a_server_that_is_killed_and_no_socket_is_left(tmp_path):
    server = Server(env={"TMPDIR": str(tmp_path)})
    server.wait_until_ready()
    assert len(server.workers()) == 2
    assert server.kill() == []
    assert list(tmp_path.rglob("duotone-*")) == []


def test_a_server_that_is_killed_while_it_starts_leaves_no_socket_behind(tmp_path):
    server = Server(env={"TMPDIR": str(tmp_path)})
    while len(server.children("duotone.stages.worker")) < 2:
        assert server.process.poll() is None
        time.sleep(0.1)
    assert len(list(tmp_path.rglob("duotone-*"))) == 2
    assert server.kill() == []
    assert list(tmp_path.rglob("duotone-*")) == []


def test_a_broken_checkpoint_ends_the_command_with_one_clear_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    done = subprocess.run(
        [sys.executable, "-m", "duotone", "serve", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "config.json" in done.stderr
    assert "model_type" in done.stderr
    assert "Traceback" not in done.stderr


def trace(path: str) -> list[str]:
    """The names of the events of a Chrome trace."""
    return [event["name"] for event in json.loads(Path(path).read_text())["traceEvents"]]


async def test_two_curls_profile_running_stages_into_a_trace_each(tmp_path):
    server = Server("--profiler-config", json.dumps({"profiler": "torch", "directory": str(tmp_path / "traces")}))
    try:
        server.wait_until_ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            assert (await client.post("/stop_profile")).status_code == 409
            assert (await client.post("/start_profile")).json() == {"replicas": ["talker-0", "code2wav-0"]}
            assert (await client.post("/start_profile")).status_code == 409
            assert (await client.post("/start_profile", json={"stages": ["vocoder"]})).status_code == 400
            await speak(client)
            files = (await client.post("/stop_profile")).json()["files"]
            assert {"prefill", "decode", "code predictor"} <= set(trace(*files["talker-0"]))
            assert "decode chunk" in trace(*files["code2wav-0"])
            # A window of one stage alone; the other one serves on untouched.
            assert (await client.post("/start_profile", json={"stages": ["code2wav"]})).status_code == 200
            await speak(client)
            assert list((await client.post("/stop_profile")).json()["files"]) == ["code2wav-0"]
            # A trace that cannot be written is no success, and the next window opens.
            assert (await client.post("/start_profile", json={"stages": ["code2wav"]})).status_code == 200
            await speak(client)
            shutil.rmtree(tmp_path / "traces")
            failed = await client.post("/stop_profile")
            assert failed.status_code == 500
            assert f"code2wav-0: ProfilerError: {tmp_path}/traces/code2wav-0." in failed.json()["error"]["message"]
            assert (await client.post("/start_profile", json={"stages": ["code2wav"]})).status_code == 200
            assert len((await client.post("/stop_profile")).json()["files"]["code2wav-0"]) == 1
    finally:
        assert server.stop() == 0


async def test_a_server_that_stops_while_a_trace_is_written_says_so_and_leaves_it_whole(tmp_path, capfd):
    options = json.dumps({"talker": {"profiler": "torch", "directory": str(tmp_path)}})
    server = Server("--profiler-config", options, "--set", "http.drain_s=0.5")
    server.wait_until_ready()
    worker = server.workers()["talker"]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.post("/start_profile")).status_code == 200
        await speak(client)
        os.kill(worker, signal.SIGSTOP)  # It takes as long to write as we like.
        stopped = asyncio.create_task(client.post("/stop_profile"))
        await asyncio.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        answer = await stopped
        os.kill(worker, signal.SIGCONT)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the server is stopping")
    assert server.process.wait(20) == 0
    assert "killed" not in capfd.readouterr().err
    (written,) = tmp_path.iterdir()
    assert "decode" in trace(str(written))


async def test_a_window_that_ends_by_itself_is_a_success_at_its_stop(tmp_path):
    options = {"profiler": "torch", "directory": str(tmp_path), "delay_iterations": 2, "max_iterations": 3}
    server = Server("--profiler-config", json.dumps({"talker": options}))
    try:
        server.wait_until_ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            assert (await client.post("/start_profile")).json() == {"replicas": ["talker-0"]}
            await speak(client)
            stopped = await client.post("/stop_profile")
            assert stopped.status_code == 200
            names = trace(*stopped.json()["files"]["talker-0"])
            assert names.count("code predictor") == 3
    finally:
        server.stop()


def test_the_cuda_profiler_is_refused_where_there_is_no_cuda():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    server = Server("--profiler-config", json.dumps({"profiler": "cuda"}))
    assert server.process.wait(60) == 1


async def test_a_stop_under_load_tells_every_client_and_alarms_nobody(capfd):
    server = Server("--set", "http.drain_s=0.5")
    server.wait_until_ready()
    long = body(min_new_frames=3000, max_new_frames=3000)
    url = server.url.replace("http", "ws") + SPEECH + "/stream"
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client, connect(url, proxy=None) as session:
        streamed = asyncio.create_task(client.post(SPEECH, json=long))
        complete = asyncio.create_task(client.post(SPEECH, json={**long, "stream": False}))
        await session.send(json.dumps({**long, "type": "session"}))
        await session.send('{"type": "text", "text": "Hello there. And more of it."}')
        while server.metric('duotone_requests_running{model="checkpoint"}') < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            await streamed
        assert (await complete).json()["error"]["message"] == "the server is stopping"
        await spoken_until(session, "error")
        with pytest.raises(ConnectionClosedError, match="1011"):
            await session.recv()
    assert server.process.wait(20) == 0
    assert "Traceback" not in capfd.readouterr().err
