"""The orchestrator over scripted stages: failures, deaths, stalls, a stop, and what works again afterwards."""

import asyncio

import pytest

from duotone.stages import fleet
from duotone.stages.errors import NotReady, StageFailed
from duotone.stages.messages import Abort, Failed, Fatal, Samples
from duotone.stages.types import Sampling

from .fake_stage import FakeStages, settle
from .listening import FRAME_BYTES, PLAN, finished, listen, submit


async def until_ready(orchestrator) -> None:
    async with asyncio.timeout(5):
        while not orchestrator.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_failure_in_one_stage_reaches_the_listener_and_stops_the_other(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        failing, other = submit(orchestrator), submit(orchestrator)
        await stages.frame(1, 2)
        await stages.say("code2wav", Failed([1], "codes out of range"))
        with pytest.raises(StageFailed, match="code2wav-0: codes out of range"):
            await listen(failing)
        assert stages.sent("talker", Abort) == [Abort([1])]
        await stages.decode_all()
        await stages.frame(ended={2: "stop"})
        await stages.decode_all()
        assert len(await listen(other)) == FRAME_BYTES


async def test_a_dead_worker_fails_what_it_held_and_the_pipeline_is_not_ready(pipeline):
    stages = FakeStages(talker_slots=1)
    async with pipeline(stages) as orchestrator:
        held, waiting = submit(orchestrator), submit(orchestrator)
        assert orchestrator.ready
        stages.processes["talker"].end(-11)
        with pytest.raises(StageFailed, match="talker-0 has failed"):
            await listen(held)
        with pytest.raises(StageFailed):
            await listen(waiting)
        assert not orchestrator.ready
        with pytest.raises(NotReady):
            submit(orchestrator)
        assert finished(orchestrator) == {"error": 2}


async def test_a_worker_that_says_why_it_dies_is_quoted_in_the_log_and_not_to_clients(pipeline, caplog):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        held = submit(orchestrator)
        stages.channels["code2wav"].events.put_nowait(Fatal("out of memory"))
        stages.processes["code2wav"].end(1)
        with pytest.raises(StageFailed) as failed:
            await listen(held)
    assert str(failed.value) == "code2wav-0 has failed and is replaced"
    assert "code2wav-0: out of memory (exit status 1)" in caplog.messages


async def test_the_death_of_code2wav_frees_the_talker(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        stages.processes["code2wav"].end(1)
        await asyncio.sleep(0.3)
        assert stages.sent("talker", Abort) == [Abort([1])]


async def test_a_stage_that_makes_nothing_fails_the_request_in_time(pipeline):
    stages = FakeStages()
    async with pipeline(stages, stall_timeout_s=0.05) as orchestrator:
        stream = submit(orchestrator)
        with pytest.raises(StageFailed, match="no sample came"):
            await listen(stream)
        assert stages.sent("talker", Abort) == [Abort([1])]


async def test_waiting_for_a_slot_is_no_stall(pipeline):
    stages = FakeStages(talker_slots=1)
    async with pipeline(stages, stall_timeout_s=0.05) as orchestrator:
        submit(orchestrator)
        waiting = asyncio.create_task(listen(submit(orchestrator)))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        waiting.cancel()


async def test_stop_lets_requests_end_within_the_drain_time(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator)
        await stages.frame(1)
        stop = asyncio.create_task(orchestrator.stop(drain_s=5))
        await settle()
        with pytest.raises(NotReady):
            submit(orchestrator)
        await stages.frame(ended={1: "stop"})
        await stages.decode_all()
        assert len(await listen(stream)) == FRAME_BYTES
        await asyncio.wait_for(stop, 1)


async def test_a_text_that_was_begun_may_go_on_within_the_drain_time(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        stop = asyncio.create_task(orchestrator.stop(drain_s=5))
        await settle()
        stream = orchestrator.submit("r", PLAN, Sampling(seed=1), follows=True)
        await stages.frame(1, 2, ended={1: "stop", 2: "stop"})
        await stages.decode_all()
        assert len(await listen(stream)) == FRAME_BYTES
        await asyncio.wait_for(stop, 1)
        with pytest.raises(NotReady):
            orchestrator.submit("r", PLAN, Sampling(seed=1), follows=True)


async def test_stop_fails_what_does_not_end_in_time(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator)
        await orchestrator.stop(drain_s=0.01)
        with pytest.raises(NotReady, match="stopping"):
            await listen(stream)
        assert {process.returncode for process in stages.processes.values()} == {0}


async def test_a_bug_in_the_dispatcher_fails_requests_instead_of_hanging_them(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator)
        await stages.say("code2wav", Samples([1], [1, 2], b"", [], 1, 0.0))
        with pytest.raises(StageFailed, match="the orchestrator broke"):
            await listen(stream)
        assert not orchestrator.ready


async def test_a_dead_worker_is_replaced_and_the_next_request_works(pipeline, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_BACKOFF_S", 0.01)
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        held = submit(orchestrator)
        await stages.frame(1)
        stages.processes["code2wav"].end(-9)
        with pytest.raises(StageFailed):
            await listen(held)
        await until_ready(orchestrator)
        assert [crew.name for crew in stages.launched] == ["talker-0", "code2wav-0", "code2wav-0"]
        stream = submit(orchestrator)
        await stages.frame(2, ended={2: "stop"})
        await stages.decode_all()
        assert len(await listen(stream)) == FRAME_BYTES
        value = orchestrator._metrics.registry.get_sample_value
        assert value("duotone_worker_restarts_total", {"model": "test", "stage": "code2wav", "replica": "0"}) == 1


async def test_a_worker_that_does_not_come_back_is_tried_again(pipeline, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_BACKOFF_S", 0.01)
    stages, launch, fails = FakeStages(), FakeStages.launch, iter([False, False, True, True])

    async def unreliable(crew):
        if next(fails, False):
            raise StageFailed("no memory")
        return await launch(stages, crew)

    stages.launch = unreliable
    async with pipeline(stages) as orchestrator:
        stages.processes["talker"].end(1)
        await asyncio.sleep(0.3)
        await until_ready(orchestrator)
        assert next(fails, None) is None
        assert submit(orchestrator).finish_reason is None
