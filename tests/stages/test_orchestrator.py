"""The orchestrator over scripted stages: order, slots, refusals, aborts, back pressure."""

import asyncio
import time

import numpy as np
import pytest

from duotone.stages.errors import QueueFull, RequestError
from duotone.stages.messages import Abort, Decode, Samples, Speak
from duotone.stages.pipeline import TalkerOptions
from duotone.stages.types import NO_CODE, SAMPLES_PER_FRAME, PromptPlan, Sampling

from .fake_stage import FakeStages, settle
from .listening import FRAME_BYTES, PLAN, finished, listen, submit


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
