"""Engines of their own: prompts prefilled whole, and a key/value cache too small for its requests."""

import json

import msgspec
import pytest

from duotone.stages.architecture import TalkerConfig
from duotone.stages.pipeline import TalkerOptions

from ..golden_outputs import GOLDEN
from ..gpu.hollow import PUBLISHED_1B7
from .talking import assert_golden, golden_cases, speak, started, talk

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("kind", ["voice_design", "base"])
def test_golden_codes_of_prompts_prefilled_whole(kind):
    cases = golden_cases(GOLDEN / kind)
    with started(GOLDEN / kind) as engine:
        result = talk(engine, {key: speak(key, case) for key, case in enumerate(cases)})
        exposition = engine.exposition()
    assert_golden(result, cases)
    assert 'vllm:num_requests_running{engine="0",model_name="talker"} 0.0' in exposition
    assert "python_info" not in exposition, "the process's own metrics are the API process's to show"


def test_golden_codes_of_requests_preempted_for_want_of_cache(monkeypatch):
    from vllm.v1.core.sched.scheduler import Scheduler

    cases = golden_cases(GOLDEN / "custom_voice")
    preempted = []
    preempt = Scheduler._preempt_request

    def counted(self, request, *args, **kwargs):
        preempted.append(request.num_output_tokens)
        preempt(self, request, *args, **kwargs)

    monkeypatch.setattr(Scheduler, "_preempt_request", counted)
    with started(GOLDEN / "custom_voice", cache_positions=14 * 32) as engine:
        result = talk(engine, {key: speak(key, case) for key, case in enumerate(cases)})
    assert len(preempted) >= 3
    assert max(preempted) > 2, "nothing was rebuilt from frames"
    assert_golden(result, cases)


def test_the_cache_holds_the_positions_that_are_asked_for():
    with started(GOLDEN / "custom_voice", cache_positions=20 * 32) as engine:
        blocks = engine._core.engine_core.scheduler.kv_cache_config.num_blocks
    assert blocks == 20


@pytest.mark.parametrize(("slots", "gib"), [(128, 14.0), (1, 0.875)])
def test_by_default_the_cache_has_room_for_a_minute_of_every_slot_and_for_two_of_the_longest(slots, gib):
    from duotone.stages.talker.vllm_engine import cache_bytes

    published = json.loads((PUBLISHED_1B7 / "config.json").read_bytes())["talker_config"]
    options = TalkerOptions(engine="vllm", dtype="bfloat16", slots=slots)
    assert cache_bytes(msgspec.convert(published, TalkerConfig), options) == gib * 2**30
