"""Every deployment profile under configs/ is valid and says what its name promises."""

from pathlib import Path

import pytest

from duotone.server.config import load_settings
from duotone.stages.fleet import Fleet

from .stages.fake_stage import FakeStages

PROFILES = Path(__file__).parents[1] / "configs"


@pytest.mark.parametrize("profile", sorted(PROFILES.glob("*.yaml")), ids=lambda profile: profile.stem)
def test_profiles_are_valid(profile):
    pipeline = load_settings(profile.stem, {}, {}).pipeline
    talker, code2wav = pipeline.talker, pipeline.code2wav
    assert code2wav.slots * len(code2wav.devices) >= talker.slots * len(talker.devices)


@pytest.mark.parametrize(
    ("profile", "devices"),
    [
        ("one_gpu", {"talker-0": "cuda:0", "code2wav-0": "cuda:0"}),
        ("two_gpu", {"talker-0": "cuda:0", "code2wav-0": "cuda:1"}),
        ("qwen3_tts_high_concurrency", {"talker-0": "cuda:0", "code2wav-0": "cuda:1"}),
        (
            "two_pipelines",
            {"talker-0": "cuda:0", "talker-1": "cuda:1", "code2wav-0": "cuda:0", "code2wav-1": "cuda:1"},
        ),
    ],
)
async def test_each_worker_gets_the_device_that_its_profile_names(profile, devices):
    stages = FakeStages()
    options = load_settings(profile, {}, {}).pipeline
    fleet = Fleet(Path("checkpoint"), options, stages.launch)
    await fleet.start()
    # What is written on a worker's standard input.
    crews = [type(crew).model_validate_json(crew.model_dump_json()) for crew in stages.launched]
    told = [spec for crew in crews for spec in crew.workers]
    assert {spec.name: spec.device for spec in told} == devices
    assert {spec.options.device for spec in told} == {"cuda"}
    await fleet.stop()
