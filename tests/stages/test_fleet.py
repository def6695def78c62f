"""Which replicas a request gets, and what a fleet with several is worth when some are gone."""

from pathlib import Path

import pytest

from duotone.stages.fleet import Fleet
from duotone.stages.pipeline import Code2WavOptions, PipelineOptions, TalkerOptions

from .fake_stage import FakeStages


@pytest.fixture
async def fleet():
    """`await fleet(talker_devices, code2wav_devices)`: started, four slots each."""
    started = []

    async def start(talker: list[str], code2wav: list[str]) -> Fleet:
        options = PipelineOptions(talker=TalkerOptions(devices=talker), code2wav=Code2WavOptions(devices=code2wav))
        started.append(Fleet(Path("checkpoint"), options, FakeStages().launch))
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
    replacement = await two.replace(dead)
    assert (replacement.name, replacement.spec.device) == ("talker-1", "cuda:1")
    assert two.replicas("talker")[1] is replacement
