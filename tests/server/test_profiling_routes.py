"""/start_profile and /stop_profile: there only when configured, every failure an envelope, nothing left running."""

import asyncio
import json

import httpx
import pytest

from duotone.stages.errors import NotReady, ProfilerFailed, ProfilingConflict, RequestError, StageFailed

from .fake_pipeline import FakePipeline, FakeProfiling


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline(profiling=FakeProfiling(stages=("talker", "code2wav")))


async def test_both_routes_answer_without_a_body(client, pipeline):
    started = await client.post("/start_profile")
    assert (started.status_code, started.json()) == (200, {"replicas": ["talker-0", "code2wav-0"]})
    stopped = await client.post("/stop_profile")
    assert stopped.json() == {"files": {"talker-0": ["/traces/talker.json"], "code2wav-0": ["/traces/code2wav.json"]}}
    assert pipeline.profiling.asked == [("start", None), ("stop", None)]


@pytest.mark.parametrize("body", [{"stages": ["talker"]}, {"stages": None}, {}, None])
async def test_stages_are_passed_on(client, pipeline, body):
    assert (await client.post("/start_profile", json=body)).status_code == 200
    assert pipeline.profiling.asked == [("start", (body or {}).get("stages"))]


@pytest.mark.parametrize(
    ("failure", "status", "param"),
    [
        (ProfilingConflict("profiling runs already on talker-0"), 409, None),
        (RequestError("no stage 'vocoder'", "stages"), 400, "stages"),
        (NotReady("not running: talker-0"), 503, None),
        (StageFailed("talker-0: the worker has died"), 503, None),
        (ProfilerFailed("talker-0: no room"), 500, None),
    ],
)
@pytest.mark.parametrize("route", ["/start_profile", "/stop_profile"])
async def test_a_failure_is_an_envelope(client, pipeline, route, failure, status, param):
    pipeline.profiling.failure = failure
    answer = await client.post(route)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"], error["param"]) == (status, str(failure), param)


@pytest.mark.parametrize(
    "body", [{"stages": "talker"}, {"stages": [1]}, {"stages": []}, {"stages": ["\ud800"]}, {"stage": ["talker"]}]
)
async def test_a_wrong_body_is_refused_by_name(client, pipeline, body):
    headers = {"Content-Type": "application/json"}
    answer = await client.post("/start_profile", content=json.dumps(body), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].partition(".")[0] == next(iter(body))
    assert pipeline.profiling.asked == []


async def test_a_client_that_leaves_while_profiling_starts_does_not_leave_it_on(live, pipeline):
    pipeline.profiling.pause = asyncio.Event()
    with pytest.raises(httpx.ReadTimeout):
        await live.post("/start_profile", timeout=0.2)
    assert pipeline.profiling.asked == [("start", None)]
    await asyncio.sleep(0.2)  # until the server has seen the connection close
    pipeline.profiling.pause.set()
    async with asyncio.timeout(5):
        while len(pipeline.profiling.asked) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert pipeline.profiling.asked == [("start", None), ("stop", None)]


async def test_the_engines_own_metrics_follow_ours(client):
    text = (await client.get("/metrics")).text
    assert "duotone_build_info" in text
    assert text.endswith("vllm:engine_steps 3\n")
