"""vLLM's scheduler, with a short way for what most steps are: everybody goes on by one frame, and nobody comes.

vLLM's own way asks of each request what any model might need, which takes five times as long; with many streams the
host has no time to lose if the device is not to wait. What a step holds is the same either way.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.request import Request


class TalkerScheduler(AsyncScheduler):
    """For one group of attention layers, without prefix cache, speculation or connectors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        (group,) = self.kv_cache_config.kv_cache_groups
        self._block_positions: int = group.kv_cache_spec.block_size

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """The next step."""
        going = self._going()
        return self._go(going) if going else super().schedule(throttle_prefills)

    def _going(self) -> list[Request]:
        """Who makes a frame next, if that is all that the next step holds; else nobody."""
        if self.waiting or self.skipped_waiting:
            return []
        going: list[Request] = []
        blocks = 0
        for request in self.running:
            computed, under_way = request.num_computed_tokens, request.num_output_placeholders
            if under_way and computed + 2 - under_way >= request.num_prompt_tokens + request.max_tokens:
                continue  # its last frame is on its way
            if request.num_tokens + under_way - computed != 1:
                return []  # a prompt in pieces
            blocks += computed % self._block_positions == 0
            going.append(request)
        enough = blocks <= self.kv_cache_manager.block_pool.get_num_free_blocks()
        return going if enough else []  # vLLM knows whom to preempt

    def _go(self, going: list[Request]) -> SchedulerOutput:
        self.current_step += 1
        self.kv_cache_manager.new_step_starts()
        ids = [request.request_id for request in going]
        scheduled = SchedulerOutput(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=ids,
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[self._new_block_ids(request) for request in going],
                num_computed_tokens=[request.num_computed_tokens for request in going],
                num_output_tokens=[request.num_output_tokens + request.num_output_placeholders for request in going],
            ),
            num_scheduled_tokens=dict.fromkeys(ids, 1),
            total_num_scheduled_tokens=len(ids),
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

    def _new_block_ids(self, request: Request) -> tuple[list[int], ...] | None:
        """The block that the next position begins, if it begins one."""
        if request.num_computed_tokens % self._block_positions:
            return None
        blocks = self.kv_cache_manager.allocate_slots(request, 1)
        assert blocks is not None, "there were enough"
        return blocks.get_block_ids()
