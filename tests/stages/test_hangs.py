"""A worker that hangs is noticed without any request's help, killed and replaced; one that is busy or idle is not."""

import asyncio

import pytest

from duotone.profiling.options import ProfilerOptions
from duotone.stages.errors import StageFailed
from duotone.stages.messages import Ping, Pong, Profiled
from duotone.stages.pipeline import Code2WavOptions

from .fake_stage import FakeStages, settle
from .listening import submit


async def test_a_silent_worker_is_asked_then_killed_and_its_requests_fail_by_its_name(pipeline, caplog):
    stages = FakeStages()
    async with pipeline(stages, hang_timeout_s=10) as orchestrator:
        stream = submit(orchestrator)
        orchestrator._look_after_silent(1)
        assert not stages.sent("talker", Ping)
        orchestrator._look_after_silent(8)
        assert stages.sent("talker", Ping)
        await stages.say("code2wav", Pong())
        orchestrator._look_after_silent(9)
        with pytest.raises(StageFailed, match="talker-0 has failed"):
            await anext(stream)
        assert "talker-0: it hung: not a word for 10 s (exit status -9)" in caplog.messages
        assert stages.processes["talker"].returncode == -9
        assert stages.processes["code2wav"].returncode is None


async def test_whatever_a_worker_says_shows_that_it_does_not_hang(pipeline):
    stages = FakeStages()
    async with pipeline(stages, hang_timeout_s=10) as orchestrator:
        submit(orchestrator)
        for _ in range(4):
            orchestrator._look_after_silent(6)
            await stages.frame(1)
            await stages.decode_all()
            await stages.say("code2wav", Pong())
        assert orchestrator.ready


async def test_a_worker_that_writes_its_trace_may_take_its_time(pipeline):
    stages = FakeStages()
    traced = Code2WavOptions(profiler_config=ProfilerOptions(profiler="torch"))
    async with pipeline(stages, hang_timeout_s=10, code2wav=traced) as orchestrator:
        starting = asyncio.create_task(orchestrator.profiling.start(None))
        await settle()
        await stages.say("talker", Pong())
        orchestrator._look_after_silent(100)
        assert stages.processes["code2wav"].returncode is None
        await stages.say("code2wav", Profiled([]))
        assert await starting == ["code2wav-0"]


async def test_a_worker_that_never_ends_its_trace_has_hung(pipeline, monkeypatch):
    monkeypatch.setattr("duotone.stages.profile_control.ANSWER_TIMEOUT_S", 0.05)
    stages = FakeStages()
    traced = Code2WavOptions(profiler_config=ProfilerOptions(profiler="torch"))
    async with pipeline(stages, hang_timeout_s=10, code2wav=traced) as orchestrator:
        with pytest.raises(StageFailed, match="no answer"):
            await orchestrator.profiling.start(None)
        orchestrator._look_after_silent(10)
        assert stages.processes["code2wav"].returncode == -9
