"""The orchestrator over scripted stages: what it counts and times."""

import asyncio

import pytest

from duotone.stages.messages import Frames

from .fake_stage import FakeStages, settle
from .listening import submit


def sample(orchestrator, name: str, **labels) -> float:
    found = orchestrator._metrics.registry.get_sample_value(name, {"model": "test", **labels})
    assert found is not None, name
    return found


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
