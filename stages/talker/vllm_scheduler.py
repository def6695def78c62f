"""vLLM's scheduler, with a short way for what most steps are: everybody makes a frame, and new prompts have room.

vLLM's own way asks of each request what any model might need, which takes five times as long; with many streams the
host has no time to lose if the device is not to wait. What a step holds is the same either way.
"""

import time
from math import ceil
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus


class TalkerScheduler(AsyncScheduler):
    """For one group of attention layers, without prefix cache, speculation or connectors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        (group,) = self.kv_cache_config.kv_cache_groups
        self._block_positions: int = group.kv_cache_spec.block_size

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """The next step."""
        going = self._going()
        coming = None if going is None else self._coming(len(going))
        if going is None or coming is None or not going + coming or not self._has_room(going, coming):
            return super().schedule(throttle_prefills)
        return self._go(going, coming)

    def _going(self) -> list[Request] | None:
        """Who makes a frame next; None where somebody's prompt goes on."""
        going: list[Request] = []
        for request in self.running:
            computed, under_way = request.num_computed_tokens, request.num_output_placeholders
            if under_way and computed + 2 - under_way >= request.num_prompt_tokens + request.max_tokens:
                continue  # its last frame is on its way
            if request.num_tokens + under_way - computed != 1:
                return None  # a prompt in pieces
            going.append(request)
        return going

    def _coming(self, going: int) -> list[Request] | None:
        """Whose prompt is a part of the step, beside the frames of so many; None where not all is plain."""
        if self.skipped_waiting:
            return None
        coming: list[Request] = []
        places, positions = self.max_num_running_reqs - len(self.running), self.max_num_scheduled_tokens - going
        for request in self.waiting:
            if not places or not positions:
                break
            if request.status != RequestStatus.WAITING or request.num_tokens > positions:
                return None  # one that was preempted, or a prompt in pieces
            places, positions = places - 1, positions - request.num_tokens
            coming.append(request)
        return coming

    def _has_room(self, going: list[Request], coming: list[Request]) -> bool:
        """Of the key/value cache. Where there is none, vLLM knows whom to preempt and who waits."""
        blocks = sum(request.num_computed_tokens % self._block_positions == 0 for request in going)
        blocks += sum(ceil(request.num_tokens / self._block_positions) for request in coming)
        spare = self.kv_cache_manager.watermark_blocks if coming else 0
        return blocks + spare <= self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _go(self, going: list[Request], coming: list[Request]) -> SchedulerOutput:
        self.current_step += 1
        self.kv_cache_manager.new_step_starts()
        ids = [request.request_id for request in going]
        frames = CachedRequestData(
            req_ids=ids,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[self._new_block_ids(request) for request in going],
            num_computed_tokens=[request.num_computed_tokens for request in going],
            num_output_tokens=[request.num_output_tokens + request.num_output_placeholders for request in going],
        )
        prompts = [self._enter(request) for request in coming]
        positions = dict.fromkeys(ids, 1) | {request.request_id: request.num_tokens for request in coming}
        scheduled = SchedulerOutput(
            scheduled_new_reqs=prompts,
            scheduled_cached_reqs=frames,
            num_scheduled_tokens=positions,
            total_num_scheduled_tokens=sum(positions.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0],
            finished_req_ids=self.finished_req_ids,
            free_encoder_mm_hashes=[],
            preempted_req_ids=self.reset_preempted_req_ids,
            new_block_ids_to_zero=self._get_new_block_ids_to_zero(),
        )
        self._update_after_schedule(scheduled)
        return scheduled

    def _enter(self, request: Request) -> NewRequestData:
        """The first of the waiting runs from now on, its whole prompt in this step."""
        blocks = self.kv_cache_manager.allocate_slots(request, request.num_tokens)
        assert blocks is not None, "there were enough"
        self.waiting.pop_request()
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        if request.prefill_stats is not None:
            request.prefill_stats.set(
                num_prompt_tokens=request.num_prompt_tokens, num_local_cached_tokens=0, num_external_cached_tokens=0
            )
        if self.log_stats:
            request.record_event(EngineCoreEventType.SCHEDULED, time.monotonic())
        return NewRequestData.from_request(request, blocks.get_block_ids(), request._all_token_ids)

    def _new_block_ids(self, request: Request) -> tuple[list[int], ...] | None:
        """The block that the next position begins, if it begins one."""
        if request.num_computed_tokens % self._block_positions:
            return None
        blocks = self.kv_cache_manager.allocate_slots(request, 1)
        assert blocks is not None, "there were enough"
        return blocks.get_block_ids()
