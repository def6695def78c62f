"""Every deployment profile under configs/ is valid and says what its name promises."""

from pathlib import Path

import pytest

from duotone.server.config import load_settings

PROFILES = Path(__file__).parents[1] / "configs"


@pytest.mark.parametrize("profile", sorted(PROFILES.glob("*.yaml")), ids=lambda profile: profile.stem)
def test_profiles_are_valid(profile):
    talker = load_settings(profile.stem, {}, {}).pipeline.talker
    assert talker.slots <= talker.vllm.max_num_batched_tokens, "a step must have room for a frame of every request"


def test_one_gpu_leaves_memory_to_code2wav():
    pipeline = load_settings("one_gpu", {}, {}).pipeline
    assert (pipeline.talker.engine, pipeline.talker.device, pipeline.code2wav.device) == ("vllm", "cuda", "cuda")
    assert pipeline.talker.vllm.gpu_memory_utilization < 0.8
    assert pipeline.code2wav.slots >= pipeline.talker.slots


def test_high_concurrency_gives_each_stage_a_device():
    pipeline = load_settings("qwen3_tts_high_concurrency", {}, {}).pipeline
    assert (pipeline.talker.device, pipeline.talker.slots) == ("cuda:0", 64)
    assert (pipeline.code2wav.device, pipeline.code2wav.slots) == ("cuda:1", 64)
