"""The orchestrator over scripted stages: order, slots, aborts, failures, deaths, back pressure."""

import asyncio
import time

import numpy as np
import pytest

from duotone.stages import fleet
from duotone.stages.errors import NotReady, QueueFull, RequestError, StageFailed
from duotone.stages.messages import Abort, Decode, Failed, Fatal, Frames, Samples, Speak
from duotone.stages.pipeline import TalkerOptions
from duotone.stages.types import NO_CODE, SAMPLES_PER_FRAME, PromptPlan, Sampling

from .fake_stage import FakeStages, settle

PLAN = PromptPlan(rows=bytes(68 * 10))
FRAME_BYTES = 2 * SAMPLES_PER_FRAME


def submit(orchestrator, **sampling):
    return orchestrator.submit("r", PLAN, Sampling(seed=1, **sampling))


async def until_ready(orchestrator) -> None:
    async with asyncio.timeout(5):
        while not orchestrator.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def listen(stream) -> bytes:
    return b"".join([samples async for samples in stream])


def finished(orchestrator) -> dict[str, float]:
    value = orchestrator._metrics.registry.get_sample_value
    reasons = ("stop", "length", "abort", "error")
    return {r: n for r in reasons if (n := value("duotone_requests_finished_total", {"model": "test", "reason": r}))}


async def test_a_request_runs_through_both_stages_and_keeps_its_order(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator)
        (speak,) = stages.sent("talker", Speak)
        assert speak.plan == PLAN
        for _ in range(30):
            await stages.frame(speak.key)
            await stages.decode_all()
        await stages.frame(ended={speak.key: "stop"})
        await stages.decode_all()
        samples = np.frombuffer(await listen(stream), np.int16)
        assert samples.tolist() == [speak.key] * (30 * SAMPLES_PER_FRAME)
        assert (stream.frames, stream.finish_reason, stream.prompt_positions) == (30, "stop", 10)
        assert finished(orchestrator) == {"stop": 1}
        assert not stages.replicas["talker"].holds
        assert not stages.replicas["code2wav"].holds


async def test_the_first_frame_is_sent_on_at_once_and_one_chunk_is_in_flight(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        key = stages.sent("talker", Speak)[0].key
        for _ in range(5):
            await stages.frame(key)
        (first,) = stages.sent("code2wav", Decode)
        assert len(first.codes) == 32
        await stages.say("code2wav", Samples([key], [1], bytes(FRAME_BYTES), [], 1, 0.0))
        assert sum(len(chunk.codes) // 32 for chunk in stages.sent("code2wav", Decode)) == 5


async def test_a_chunk_answered_in_parts_is_in_flight_until_its_last_part(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        for _ in range(5):
            await stages.frame(1)
        await stages.say("code2wav", Samples([1], [1], bytes(FRAME_BYTES), [], 1, 0.0))
        assert [len(chunk.codes) // 32 for chunk in stages.sent("code2wav", Decode)] == [1, 4]
        await stages.frame(1)
        await stages.say("code2wav", Samples([1], [3], bytes(3 * FRAME_BYTES), [], 1, 0.0))
        assert len(stages.sent("code2wav", Decode)) == 2
        await stages.frame(1, ended={1: "stop"})
        await stages.say("code2wav", Samples([1], [1], bytes(FRAME_BYTES), [], 1, 0.0))
        assert [len(chunk.codes) // 32 for chunk in stages.sent("code2wav", Decode)] == [1, 4, 2]


async def test_an_end_without_any_frame_gives_an_empty_answer(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator, min_new_frames=0)
        await stages.frame(ended={stages.sent("talker", Speak)[0].key: "stop"})
        await stages.decode_all()
        assert await listen(stream) == b""
        assert not stages.replicas["code2wav"].holds


async def test_the_frames_of_a_cloning_prompt_are_decoded_before_the_answer_and_are_no_part_of_it(pipeline):
    """However many parts they come in, and also when no answer follows."""
    rows = np.full((9, 17), NO_CODE, "<i4")
    rows[2:7, 1:] = 3
    rows[7, 1] = 5
    plan = PromptPlan(rows.tobytes(), speaker=bytes(4))
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = orchestrator.submit("r", plan, Sampling(seed=1))
        await stages.frame(1)
        (reference,) = stages.sent("code2wav", Decode)
        assert reference.codes == np.full((5, 16), 3, "<i2").tobytes()
        assert reference.deadline_s > time.monotonic(), "those who listen already go first"
        await stages.say("code2wav", Samples([1], [4], bytes(4 * FRAME_BYTES), [], 1, 0.0))
        assert len(stages.sent("code2wav", Decode)) == 1
        await stages.say("code2wav", Samples([1], [1], bytes(FRAME_BYTES), [], 1, 0.0))
        assert len(stages.sent("code2wav", Decode)) == 2
        stages.channels["code2wav"].sent.clear()
        await stages.say("code2wav", Samples([1], [1], bytes(FRAME_BYTES), [], 1, 0.0))
        await stages.frame(ended={1: "stop"})
        await stages.decode_all()
        assert len(await listen(stream)) == FRAME_BYTES
        assert stream.frames == 1
        silent = orchestrator.submit("r", plan, Sampling(seed=1))
        await stages.frame(ended={2: "stop"})
        await stages.decode_all()
        assert await listen(silent) == b""
        assert not stages.replicas["code2wav"].holds


async def test_those_who_wait_get_slots_in_order_of_arrival(pipeline):
    stages = FakeStages(talker_slots=1, code2wav_slots=2)
    async with pipeline(stages) as orchestrator:
        for _ in range(4):
            submit(orchestrator)
        assert [speak.key for speak in stages.sent("talker", Speak)] == [1]
        # The Talker's slot is free before the last samples are: the next request starts meanwhile.
        await stages.frame(1, ended={1: "length"})
        assert [speak.key for speak in stages.sent("talker", Speak)] == [1, 2]
        await stages.frame(2, ended={2: "length"})
        assert [speak.key for speak in stages.sent("talker", Speak)] == [1, 2]
        await stages.decode_all()
        assert [speak.key for speak in stages.sent("talker", Speak)] == [1, 2, 3]


async def test_one_more_than_may_wait_is_refused_and_changes_nothing(pipeline):
    stages = FakeStages(talker_slots=1)
    async with pipeline(stages, max_waiting=2) as orchestrator:
        for _ in range(3):
            submit(orchestrator)
        orchestrator.submit("r", PLAN, Sampling(seed=1), follows=True)
        with pytest.raises(QueueFull, match="no more than 2 requests may wait"):
            submit(orchestrator)
        assert len(orchestrator._requests) == 4


async def test_nobody_may_wait_when_the_queue_has_no_room_but_a_free_slot_is_taken(pipeline):
    stages = FakeStages(talker_slots=1)
    async with pipeline(stages, max_waiting=0) as orchestrator:
        submit(orchestrator)
        with pytest.raises(QueueFull):
            submit(orchestrator)


async def test_what_follows_on_an_admitted_text_may_wait_even_in_a_full_queue(pipeline):
    stages = FakeStages(talker_slots=1)
    async with pipeline(stages, max_waiting=0) as orchestrator:
        submit(orchestrator)
        orchestrator.submit("r", PLAN, Sampling(seed=1), follows=True)
        await stages.frame(1, ended={1: "stop"})
        assert [speak.key for speak in stages.sent("talker", Speak)] == [1, 2]


async def test_a_request_that_cannot_fit_is_refused_by_name(pipeline):
    stages = FakeStages()
    async with pipeline(stages, talker=TalkerOptions(max_positions=100)) as orchestrator:
        with pytest.raises(RequestError, match="10 positions and 91 frames") as error:
            submit(orchestrator, max_new_frames=91)
        assert error.value.param == "max_new_frames"
        with pytest.raises(RequestError) as error:
            orchestrator.submit("r", PromptPlan(rows=bytes(68 * 100)), Sampling(seed=1, max_new_frames=1))
        assert error.value.param == "input"
        submit(orchestrator, max_new_frames=90)


async def test_a_listener_who_leaves_ends_the_work_in_both_stages(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator)
        await stages.frame(1)
        stream.cancel()
        stream.cancel()
        assert stages.sent("talker", Abort) == [Abort([1])]
        assert stages.sent("code2wav", Abort) == [Abort([1])]
        # What was on its way when the listener left is nobody's any more.
        await stages.frame(1)
        await stages.decode_all()
        assert finished(orchestrator) == {"abort": 1}
        assert not orchestrator._requests
        assert await listen(stream) == b""


async def test_taking_what_was_left_of_a_cancelled_stream_opens_nothing_again(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        stream = submit(orchestrator)
        await stages.frame(1)
        await stages.decode_all()
        for _ in range(3):
            await stages.frame(1)
        stages.channels["code2wav"].sent.clear()
        orchestrator._requests[1].decoding = False
        stream.cancel()
        assert len(await listen(stream)) == FRAME_BYTES
        assert not stages.sent("code2wav", Decode)


async def test_a_listener_who_leaves_while_waiting_is_never_sent_to_a_stage(pipeline):
    stages = FakeStages(talker_slots=1)
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        waiting = submit(orchestrator)
        waiting.cancel()
        await stages.frame(1, ended={1: "stop"})
        await stages.decode_all()
        assert [speak.key for speak in stages.sent("talker", Speak)] == [1]
        assert not stages.sent("talker", Abort)


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


async def test_a_slow_listener_holds_a_bounded_buffer_and_slows_nobody(pipeline):
    stages = FakeStages()
    async with pipeline(stages, max_buffered_s=0.8) as orchestrator:
        slow, quick = submit(orchestrator), submit(orchestrator)
        taken = asyncio.create_task(listen(quick))
        for _ in range(200):
            await stages.frame(1, 2)
            await stages.decode_all()
        request = orchestrator._requests[1]
        assert request.made_frames == 200
        assert 0.8 <= request.undelivered_s <= 0.8 + 16 * 0.08 + 1e-6
        await stages.frame(ended={1: "stop", 2: "stop"})
        await stages.decode_all()
        assert len(await taken) == 200 * FRAME_BYTES
        slow_taken = asyncio.create_task(listen(slow))
        for _ in range(30):
            await settle()
            await stages.decode_all()
        assert len(await slow_taken) == 200 * FRAME_BYTES


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


async def test_a_burst_drained_within_a_window_shows_as_its_high_water(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        for _ in range(7):
            stages.channels["talker"].events.put_nowait(Frames([1], bytes(32), [], 1, 0.0))
        await settle()
        monitor = orchestrator._monitor
        assert (monitor.dispatch.size, monitor.recent_high_water(), monitor.recent_high_water("talker-0")) == (0, 7, 7)
        value = orchestrator._metrics.registry.get_sample_value
        assert value("duotone_dispatch_queue_high_water", {"model": "test"}) == 7
        labels = {"model": "test", "stage": "talker", "replica": "0"}
        assert value("duotone_output_queue_high_water", labels) == 7
        assert value("duotone_dispatch_queue_depth", {"model": "test"}) == 0
        assert value("duotone_orchestrator_turns_total", {"model": "test", "state": "active"}) > 0


def sample(orchestrator, name: str, **labels) -> float:
    found = orchestrator._metrics.registry.get_sample_value(name, {"model": "test", **labels})
    assert found is not None, name
    return found


async def test_steps_tokens_and_waits_are_counted(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator), submit(orchestrator)
        await stages.frame(1, 2)
        await stages.frame(1, 2, ended={1: "length", 2: "stop"})
        await stages.decode_all()
        assert sample(orchestrator, "duotone_frames_total", stage="talker", replica="0") == 4
        assert sample(orchestrator, "duotone_frames_total", stage="code2wav", replica="0") == 4
        assert sample(orchestrator, "duotone_generated_tokens_total") == 64
        assert sample(orchestrator, "duotone_prompt_tokens_total") == 20
        assert sample(orchestrator, "duotone_step_seconds_sum", stage="talker", replica="0") == pytest.approx(0.02)
        assert sample(orchestrator, "duotone_batch_size_sum", stage="talker", replica="0") == 4
        assert sample(orchestrator, "duotone_queue_wait_seconds_count") == 2
        assert sample(orchestrator, "duotone_time_to_first_audio_seconds_count") == 2
        assert sample(orchestrator, "duotone_inter_chunk_seconds_count") == 2
        assert sample(orchestrator, "duotone_audio_seconds_total") == pytest.approx(0.32)
        assert sample(orchestrator, "duotone_requests_finished_total", reason="length") == 1


async def test_silence_at_a_listener_who_started_at_once_is_counted(pipeline):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator)
        await stages.frame(1)
        await stages.decode_all()
        await asyncio.sleep(0.2)
        await stages.frame(1)
        await stages.decode_all()
        # One frame of 80 ms was played in 200 ms and more.
        assert 0.1 < sample(orchestrator, "duotone_underrun_seconds_total") < 0.5
        silent_s = sample(orchestrator, "duotone_underrun_seconds_total")
        await stages.frame(1)
        await stages.decode_all()
        assert sample(orchestrator, "duotone_underrun_seconds_total") == silent_s


@pytest.mark.parametrize("reason", ["disconnect", "slow_client", "cancel"])
async def test_a_stream_given_up_is_counted_by_its_reason(pipeline, reason):
    stages = FakeStages()
    async with pipeline(stages) as orchestrator:
        submit(orchestrator).cancel(reason)
        assert sample(orchestrator, "duotone_streams_aborted_total", reason=reason) == 1
        assert sample(orchestrator, "duotone_requests_finished_total", reason="abort") == 1
