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


def test_where_many_talk_a_new_request_waits_a_little_for_others_and_gets_the_same_codes(monkeypatch):
    from vllm.v1.engine.core_client import InprocClient

    from duotone.stages.talker import vllm_engine

    monkeypatch.setattr(vllm_engine, "_JOIN_SHARE", 3)
    cases = golden_cases(GOLDEN / "custom_voice")[:8]
    joins = dict(enumerate([0, 0, 0, 0, 0, 2, 8, 8]))
    steps, joined = 0, {}
    add = InprocClient.add_request

    def counted(self, request):
        joined[int(request.request_id)] = steps
        add(self, request)

    def stepped(result):
        nonlocal steps
        steps = result.steps

    with started(GOLDEN / "custom_voice") as engine:
        monkeypatch.setattr(InprocClient, "add_request", counted)
        requests = {key: speak(key, case) for key, case in enumerate(cases)}
        result = talk(engine, requests, joins=joins.__getitem__, each_step=stepped)
    assert_golden(result, cases)
    lone, group = 2 + TalkerOptions().vllm.join_steps, 8
    assert joined == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: lone, 6: group, 7: group}


def test_a_request_that_leaves_while_it_waits_never_begins(monkeypatch):
    from duotone.stages.messages import Abort
    from duotone.stages.talker import vllm_engine

    monkeypatch.setattr(vllm_engine, "_JOIN_SHARE", 1)
    cases = golden_cases(GOLDEN / "custom_voice")[:3]

    def leave(result):
        if result.steps == 3:
            engine.accept(Abort([2]))

    with started(GOLDEN / "custom_voice") as engine:
        requests = {key: speak(key, case) for key, case in enumerate(cases)}
        result = talk(engine, requests, joins=lambda key: 2 * (key == 2), each_step=leave)
    assert_golden(result, cases[:2])
    assert not len(result.codes(2))
