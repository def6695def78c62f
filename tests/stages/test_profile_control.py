"""Profiling running stages: who is asked, what is a conflict, and what a failure leaves behind."""

import asyncio
import logging

import pytest

from duotone.profiling.options import ProfilerOptions
from duotone.stages import profile_control
from duotone.stages.errors import NotReady, ProfilerFailed, ProfilingConflict, RequestError, StageFailed
from duotone.stages.messages import Exposition, Profiled, Scrape, StartProfile, StopProfile
from duotone.stages.pipeline import Code2WavOptions, TalkerOptions

from .fake_stage import FakeStages, settle

TORCH = ProfilerOptions(profiler="torch")
BOTH = {"talker": TalkerOptions(profiler_config=TORCH), "code2wav": Code2WavOptions(profiler_config=TORCH)}


async def answered(stages, action, **answers):
    """Run an action while the stages give these answers."""
    task = asyncio.create_task(action)
    await settle()
    for stage, answer in answers.items():
        await stages.say(stage, answer)
    return await asyncio.wait_for(task, 1)


async def test_both_stages_start_and_stop_and_name_their_files(pipeline):
    stages = FakeStages()
    async with pipeline(stages, **BOTH) as orchestrator:
        control = orchestrator.profiling
        started = await answered(stages, control.start(None), talker=Profiled([]), code2wav=Profiled([]))
        assert started == ["talker-0", "code2wav-0"]
        stop = control.stop(None)
        files = await answered(stages, stop, talker=Profiled(["/t.json"]), code2wav=Profiled(["/c.json"]))
        assert files == {"talker-0": ["/t.json"], "code2wav-0": ["/c.json"]}
        assert len(stages.sent("talker", StartProfile)) == len(stages.sent("code2wav", StopProfile)) == 1


async def test_only_the_stages_named_are_profiled(pipeline):
    stages = FakeStages()
    async with pipeline(stages, **BOTH) as orchestrator:
        await answered(stages, orchestrator.profiling.start(["talker"]), talker=Profiled([]))
        assert not stages.sent("code2wav", StartProfile)
        files = await answered(stages, orchestrator.profiling.stop(None), talker=Profiled(["/t.json"]))
        assert files == {"talker-0": ["/t.json"]}


async def test_a_second_start_and_a_stop_without_start_are_conflicts(pipeline):
    stages = FakeStages()
    async with pipeline(stages, **BOTH) as orchestrator:
        control = orchestrator.profiling
        with pytest.raises(ProfilingConflict):
            await control.stop(None)
        await answered(stages, control.start(["talker"]), talker=Profiled([]))
        with pytest.raises(ProfilingConflict, match="talker-0"):
            await control.start(None)
        with pytest.raises(ProfilingConflict, match="code2wav-0"):
            await control.stop(["code2wav"])
        with pytest.raises(ProfilingConflict, match=r"on code2wav-0$"):
            await answered(stages, control.stop(["talker", "code2wav"]))
        await answered(stages, control.stop(["talker"]), talker=Profiled([]))
        with pytest.raises(ProfilingConflict):
            await control.stop(["talker"])
        await answered(stages, control.start(["talker"]), talker=Profiled([]))


async def test_a_stage_that_is_unknown_or_not_configured_is_named(pipeline):
    stages = FakeStages()
    async with pipeline(stages, talker=BOTH["talker"]) as orchestrator:
        assert orchestrator.profiling.stages == ("talker",)
        for stage in ("code2wav", "vocoder"):
            with pytest.raises(RequestError, match=f"'{stage}'.*configured are: talker") as error:
                await orchestrator.profiling.start([stage])
            assert error.value.param == "stages"


async def test_a_failed_start_is_undone_where_it_worked(pipeline):
    stages = FakeStages()
    async with pipeline(stages, **BOTH) as orchestrator:
        start = asyncio.create_task(orchestrator.profiling.start(None))
        await settle()
        await stages.say("talker", Profiled([]))
        await stages.say("code2wav", Profiled([], "no room"))
        assert len(stages.sent("talker", StopProfile)) == 1
        assert not stages.sent("code2wav", StopProfile)
        await stages.say("talker", Profiled([]))
        with pytest.raises(ProfilerFailed, match="code2wav-0: no room"):
            await start
        with pytest.raises(ProfilingConflict):
            await orchestrator.profiling.stop(None)


async def test_what_could_not_be_written_is_told_beside_what_was_and_profiling_is_off(pipeline):
    stages = FakeStages()
    async with pipeline(stages, **BOTH) as orchestrator:
        control = orchestrator.profiling
        await answered(stages, control.start(None), talker=Profiled([]), code2wav=Profiled([]))
        with pytest.raises(ProfilerFailed, match=r"talker-0: no disk; code2wav-0 wrote /c\.json"):
            await answered(stages, control.stop(None), talker=Profiled([], "no disk"), code2wav=Profiled(["/c.json"]))
        await answered(stages, control.start(None), talker=Profiled([]), code2wav=Profiled([]))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("others", [["code2wav"], []])
async def test_a_worker_that_died_while_profiled_is_missed_at_the_stop_once(pipeline, monkeypatch, replaced, others):
    monkeypatch.setattr("duotone.stages.fleet.FIRST_BACKOFF_S", 0.01 if replaced else 60)
    stages = FakeStages()
    async with pipeline(stages, **BOTH) as orchestrator:
        control = orchestrator.profiling
        answers = dict.fromkeys(others, Profiled([]))
        await answered(stages, control.start(["talker", *others]), talker=Profiled([]), **answers)
        stages.processes["talker"].end(-9)
        await asyncio.sleep(0.4)
        assert len(stages.launched) == 2 + replaced
        written = dict.fromkeys(others, Profiled(["/c.json"]))
        told = "talker-0: the worker has died" + "; code2wav-0 wrote /c.json" * len(others)
        with pytest.raises(StageFailed, match=f"^{told}$") as failure:
            await answered(stages, control.stop(None), **written)
        assert not isinstance(failure.value, ProfilerFailed)
        with pytest.raises(ProfilingConflict):
            await control.stop(None)
        if replaced:
            await answered(stages, control.start(["talker"]), talker=Profiled([]))
        else:
            with pytest.raises(NotReady, match="talker-0"):
                await control.start(None)


async def test_a_worker_in_the_place_of_a_profiled_one_can_be_profiled_at_once(pipeline, monkeypatch):
    monkeypatch.setattr("duotone.stages.fleet.FIRST_BACKOFF_S", 0.01)
    stages = FakeStages()
    async with pipeline(stages, talker=BOTH["talker"]) as orchestrator:
        control = orchestrator.profiling
        await answered(stages, control.start(None), talker=Profiled([]))
        stages.processes["talker"].end(-9)
        await asyncio.sleep(0.4)
        await answered(stages, control.start(None), talker=Profiled([]))
        assert await answered(stages, control.stop(None), talker=Profiled(["/t.json"])) == {"talker-0": ["/t.json"]}


async def test_a_stop_that_lasts_longer_than_the_server_is_told_so(pipeline):
    stages = FakeStages()
    async with pipeline(stages, talker=BOTH["talker"]) as orchestrator:
        await answered(stages, orchestrator.profiling.start(None), talker=Profiled([]))
        stops = [asyncio.create_task(orchestrator.profiling.stop(named)) for named in (None, ["talker"])]
        await settle()
        await orchestrator.drain(0.05)
        with pytest.raises(NotReady, match="the server is stopping"):
            await asyncio.wait_for(stops[0], 1)
        with pytest.raises(ProfilingConflict):
            await asyncio.wait_for(stops[1], 1)
        with pytest.raises(NotReady, match="the server is stopping"):
            await asyncio.wait_for(orchestrator.profiling.start(None), 1)


async def test_a_stop_that_ends_while_the_server_drains_names_its_files_and_logs_them(pipeline, caplog):
    caplog.set_level(logging.INFO)
    stages = FakeStages()
    async with pipeline(stages, talker=BOTH["talker"]) as orchestrator:
        await answered(stages, orchestrator.profiling.start(None), talker=Profiled([]))
        stop = asyncio.create_task(orchestrator.profiling.stop(None))
        await settle()
        draining = asyncio.create_task(orchestrator.drain(5))
        await settle()
        assert not draining.done()
        await stages.say("talker", Profiled(["/t.json"]))
        assert await stop == {"talker-0": ["/t.json"]}
        await asyncio.wait_for(draining, 1)
        assert "talker-0: profiled into /t.json" in caplog.messages


async def test_a_worker_that_dies_before_it_answers_fails_the_stop(pipeline):
    stages = FakeStages()
    async with pipeline(stages, talker=BOTH["talker"]) as orchestrator:
        await answered(stages, orchestrator.profiling.start(None), talker=Profiled([]))
        stop = asyncio.create_task(orchestrator.profiling.stop(None))
        await settle()
        stages.processes["talker"].end(-9)
        with pytest.raises(StageFailed, match="talker-0: the worker has died"):
            await asyncio.wait_for(stop, 2)


async def test_a_worker_that_never_answers_fails_the_start_in_time(pipeline, monkeypatch):
    monkeypatch.setattr(profile_control, "ANSWER_TIMEOUT_S", 0.05)
    stages = FakeStages()
    async with pipeline(stages, talker=BOTH["talker"]) as orchestrator:
        with pytest.raises(StageFailed, match="no answer"):
            await orchestrator.profiling.start(None)


async def test_a_scrape_joins_what_the_engines_answer(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        text = await answered(
            stages, orchestrator.exposition(), talker=Exposition("vllm:a 1\n"), code2wav=Exposition("")
        )
        assert 'vllm:a{replica="0",stage="talker"} 1.0' in text.splitlines()
        # Two scrapes at once share one question.
        both = asyncio.gather(orchestrator.exposition(), orchestrator.exposition())
        await settle()
        assert len(stages.sent("talker", Scrape)) == 2
        await stages.say("talker", Exposition("vllm:a 2\n"))
        await stages.say("code2wav", Exposition(""))
        for text in await both:
            assert 'vllm:a{replica="0",stage="talker"} 2.0' in text.splitlines()


async def test_a_busy_engine_is_left_out_of_a_scrape(pipeline, monkeypatch):
    monkeypatch.setattr("duotone.stages.orchestrator.SCRAPE_TIMEOUT_S", 0.05)
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        text = await answered(stages, orchestrator.exposition(), code2wav=Exposition("b 1\n"))
        assert 'b{replica="0",stage="code2wav"} 1.0' in text.splitlines()
