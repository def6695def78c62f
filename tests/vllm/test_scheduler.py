"""The short way of planning a step plans what vLLM's own way would have planned."""

import random
from collections import deque
from dataclasses import asdict

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.pipeline import TalkerOptions, VllmOptions
from duotone.stages.talker.vllm_engine import engine_args
from duotone.stages.talker.vllm_model import register
from duotone.stages.talker.vllm_scheduler import TalkerScheduler

from ..golden_outputs import GOLDEN

pytestmark = pytest.mark.filterwarnings("default")
SLOTS, BLOCK_POSITIONS, STEPS, EOS = 6, 16, 400, 7


@pytest.fixture(scope="module")
def config():
    register()
    options = TalkerOptions(
        engine="vllm", slots=SLOTS, max_positions=256, vllm=VllmOptions(max_num_batched_tokens=40, enforce_eager=True)
    )
    return engine_args(read_checkpoint(GOLDEN / "custom_voice" / "checkpoint"), options).create_engine_config()


class Core:
    """A scheduler and, in the place of a model, a step on its way whose codes follow from request and position."""

    def __init__(self, kind, config, blocks):
        spec = FullAttentionSpec(BLOCK_POSITIONS, num_kv_heads=1, head_size=16, dtype=torch.float32)
        caches = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        config.cache_config.num_gpu_blocks = blocks
        self.scheduler = kind(config, caches, StructuredOutputManager(config), block_size=BLOCK_POSITIONS)
        self.under_way = deque()

    def add(self, key, positions, frames):
        sampling = SamplingParams(max_tokens=frames, stop_token_ids=[EOS], ignore_eos=True)
        self.scheduler.add_request(Request(key, [0] * positions, sampling, None, arrival_time=float(key)))

    def step(self):
        """What is planned, and what the step before it has brought."""
        planned = self.scheduler.schedule()
        shown = asdict(planned)
        for new in shown["scheduled_new_reqs"]:
            new.pop("sampling_params")
        self.under_way.append(planned)
        if len(self.under_way) == 1:
            return shown, None
        before = self.under_way.popleft()
        ids = list(before.num_scheduled_tokens)
        made = {each.req_id: each.num_computed_tokens for each in before.scheduled_new_reqs}
        cached = before.scheduled_cached_reqs
        made |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        codes = [self._codes(key, made[key] + count) for key, count in before.num_scheduled_tokens.items()]
        model = ModelRunnerOutput(ids, {key: at for at, key in enumerate(ids)}, codes)
        brought = self.scheduler.update_from_output(before, model)
        return shown, [
            (each.request_id, each.new_token_ids, each.finish_reason)
            for each in (brought[0].outputs if brought else [])
        ]

    def _codes(self, key, stop):
        request = self.scheduler.requests.get(key)
        if request is None or stop < request.num_prompt_tokens:
            return []
        return [random.Random(f"{key} {stop}").choice([EOS, *range(10, 40)])]


@pytest.mark.parametrize("blocks", [12, 200], ids=["preempted for want of blocks", "room for all"])
@pytest.mark.parametrize("seed", range(4))
def test_steps_are_those_of_vllms_own_scheduler(config, blocks, seed):
    chance = random.Random(seed)
    ours, vllms = (Core(kind, config, blocks) for kind in (TalkerScheduler, AsyncScheduler))
    short_ways, preempted, go = [], set(), ours.scheduler._go
    ours.scheduler._go = lambda going, coming: short_ways.append((len(going), len(coming))) or go(going, coming)
    for number in range(STEPS):
        for each in range(chance.choice([1, 2, 3]) if chance.random() < 0.08 else 0):
            positions, frames = chance.randrange(1, chance.choice([8, 60])), chance.randrange(1, 70)
            for core in (ours, vllms):
                core.add(f"{number}.{each}", positions, frames)
        if chance.random() < 0.02 and ours.scheduler.running:
            key = chance.choice(ours.scheduler.running).request_id
            for core in (ours, vllms):
                core.scheduler.finish_requests(key, RequestStatus.FINISHED_ABORTED)
        planned, brought = ours.step()
        assert (planned, brought) == vllms.step(), number
        preempted |= planned["preempted_req_ids"]
    assert len(short_ways) > STEPS / 8
    for many in map(max, zip(*short_ways, strict=True)):  # who goes on, who comes
        assert many > 1
    assert bool(preempted) == (blocks == 12)
