"""Engines of their own: prompts prefilled whole, and a key/value cache too small for its requests."""

import pytest

from ..golden_outputs import GOLDEN
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
