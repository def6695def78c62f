"""Which replicas a request gets, and what a fleet with several is worth when some are gone."""

import asyncio
from pathlib import Path

import pytest

from duotone.stages.errors import StageFailed
from duotone.stages.fleet import Fleet
from duotone.stages.pipeline import Code2WavOptions, PipelineOptions, TalkerOptions

from .fake_stage import FakeStages, settle


@pytest.fixture
async def fleet():
    """`await fleet(talker_devices, code2wav_devices)`: started, four slots each."""
    started = []

    async def start(
        talker: list[str], code2wav: list[str], stages: FakeStages | None = None, engine: str = "torch", profilers=()
    ) -> Fleet:
        by_talker, by_code2wav = (kind and {"profiler": kind} for kind in profilers or (None, None))
        options = PipelineOptions(
            talker=TalkerOptions(devices=talker, engine=engine, profiler_config=by_talker),
            code2wav=Code2WavOptions(devices=code2wav, profiler_config=by_code2wav),
        )
        started.append(Fleet(Path("checkpoint"), options, (stages or FakeStages()).launch))
        await started[-1].start()
        return started[-1]

    yield start
    for one in started:
        await one.stop()


def admit(fleet: Fleet, key: int) -> list[str] | None:
    """The names of the pair that a request with this key gets."""
    pair = fleet.free_pair()
    for replica in pair or ():
        replica.holds.add(key)
    return pair and [replica.name for replica in pair]


async def test_requests_spread_over_pipelines_and_stay_on_one_device(fleet):
    two = await fleet(["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"])
    pairs = [admit(two, key) for key in range(8)]
    assert pairs == 4 * [["talker-0", "code2wav-0"], ["talker-1", "code2wav-1"]]
    assert admit(two, 8) is None


async def test_a_pair_on_two_devices_serves_where_no_other_is_free(fleet):
    two = await fleet(["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"])
    one, other = two.replicas("talker")
    one.holds |= set(range(4))
    two.replicas("code2wav")[1].holds |= set(range(4))
    assert admit(two, 9) == ["talker-1", "code2wav-0"]
    other.process.end(1)
    assert admit(two, 10) is None


async def test_the_freest_of_several_is_taken_whatever_the_devices(fleet):
    three = await fleet(["cuda:0"], ["cuda:1", "cuda:2", "cuda:2"])
    assert [admit(three, key)[1] for key in range(4)] == ["code2wav-0", "code2wav-1", "code2wav-2", "code2wav-0"]


async def test_a_fleet_is_ready_as_long_as_each_stage_has_a_worker(fleet):
    two = await fleet(["cpu", "cpu"], ["cpu"])
    two.replicas("talker")[0].process.end(1)
    assert two.ready
    two.replicas("talker")[1].process.end(1)
    assert not two.ready


async def test_a_replacement_comes_to_the_device_of_the_dead(fleet, monkeypatch):
    monkeypatch.setattr("duotone.stages.fleet.FIRST_BACKOFF_S", 0)
    two = await fleet(["cuda:0", "cuda:1"], ["cuda:1"])
    dead = two.replicas("talker")[1]
    dead.process.end(1)
    (replacement,) = await two.replace(dead)
    assert (replacement.name, replacement.spec.device) == ("talker-1", "cuda:1")
    assert two.replicas("talker")[1] is replacement


@pytest.mark.parametrize(
    ("talkers", "decoders", "engine", "profilers", "crews"),
    [
        (["cuda:0"], ["cuda:0"], "vllm", (), ["talker-0+code2wav-0"]),
        (["cuda:0"], ["cuda:1"], "vllm", (), ["talker-0", "code2wav-0"]),
        (["cuda:0"], ["cuda:0"], "torch", (), ["talker-0", "code2wav-0"]),
        (["cpu"], ["cpu"], "vllm", (), ["talker-0", "code2wav-0"]),
        (["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"], "vllm", (), ["talker-0+code2wav-1", "talker-1+code2wav-0"]),
        (["cuda:0", "cuda:0"], ["cuda:0"], "vllm", (), ["talker-0+code2wav-0", "talker-1"]),
        (["cuda:0"], ["cuda:0", "cuda:0"], "vllm", (), ["talker-0+code2wav-0", "code2wav-1"]),
        (["cuda:0"], ["cuda:0"], "vllm", ("torch", "torch"), ["talker-0", "code2wav-0"]),
        (["cuda:0"], ["cuda:0"], "vllm", ("torch", None), ["talker-0+code2wav-0"]),
        (["cuda:0"], ["cuda:0"], "vllm", ("cuda", "cuda"), ["talker-0", "code2wav-0"]),
        (["cuda:0"], ["cuda:0"], "vllm", (None, "cuda"), ["talker-0", "code2wav-0"]),
    ],
)
async def test_vllm_and_code2wav_share_a_process_where_they_share_a_gpu(
    fleet, talkers, decoders, engine, profilers, crews
):
    stages = FakeStages()
    started = await fleet(talkers, decoders, stages, engine, profilers)
    assert [crew.name for crew in stages.launched] == crews
    assert [r.name for r in started.replicas("talker")] == [f"talker-{at}" for at in range(len(talkers))]
    assert [r.name for r in started.replicas("code2wav")] == [f"code2wav-{at}" for at in range(len(decoders))]


async def test_a_shared_process_is_replaced_once_for_all_its_workers(fleet, monkeypatch):
    monkeypatch.setattr("duotone.stages.fleet.FIRST_BACKOFF_S", 0)
    stages = FakeStages()
    two = await fleet(["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"], stages, "vllm")
    dead = [two.replicas(stage)[1] for stage in ("talker", "code2wav")]
    dead[0].process.end(-9)
    assert [replica.alive for replica in two.replicas()] == [True, False, True, False]
    assert await two.replace(dead[0]) == []
    started = await two.replace(dead[1])
    assert [replica.name for replica in started] == ["talker-1", "code2wav-1"]
    assert [crew.name for crew in stages.launched[2:]] == ["talker-1+code2wav-1"]
    assert [two.replicas(stage)[1] for stage in ("talker", "code2wav")] == started
    assert all(replica.alive for replica in two.replicas())


async def test_a_start_that_fails_ends_every_process_at_once():
    stages, launch = FakeStages(), FakeStages.launch

    async def one_refuses(crew):
        if crew.name == "code2wav-0":
            raise StageFailed("code2wav-0: cannot be started")
        if crew.name == "talker-1":
            await asyncio.sleep(3600)
        return await launch(stages, crew)

    options = PipelineOptions(talker=TalkerOptions(devices=["cpu", "cpu"]))
    with pytest.raises(StageFailed, match="code2wav-0"):
        await asyncio.wait_for(Fleet(Path("checkpoint"), options, one_refuses).start(), 10)
    assert [crew.name for crew in stages.launched] == ["talker-0"]
    assert stages.processes["talker"].returncode == 0


async def test_a_start_that_is_given_up_ends_those_that_are_ready():
    stages, launch = FakeStages(), FakeStages.launch

    async def one_loads_for_ever(crew):
        if crew.name == "code2wav-0":
            await asyncio.sleep(3600)
        return await launch(stages, crew)

    starting = asyncio.create_task(Fleet(Path("checkpoint"), PipelineOptions(), one_loads_for_ever).start())
    await settle()
    assert stages.processes["talker"].returncode is None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert stages.processes["talker"].returncode == 0


async def test_nobody_is_started_for_a_worker_that_the_fleet_has_let_go(fleet):
    stages = FakeStages()
    one = await fleet(["cpu"], ["cpu"], stages)
    (dead,) = one.replicas("talker")
    await one.stop()
    assert await one.replace(dead) == []
    assert len(stages.launched) == 2
