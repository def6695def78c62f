"""The states of many streams: one preallocated tensor a stateful layer, a row a slot."""

import torch
from torch import Tensor, nn

from .layers import State, Stateful


class SlotStates:
    """What a decoder remembers of up to `slots` streams. A step gathers its streams' rows and scatters new ones."""

    def __init__(self, decoder: nn.Module, slots: int, dtype: torch.dtype, device: str) -> None:
        self.buffers: State = {
            layer: torch.zeros((slots, *layer.state_shape), dtype=layer.state_dtype or dtype, device=device)
            for layer in decoder.modules()
            if isinstance(layer, Stateful) and 0 not in layer.state_shape
        }

    def reset(self, slot: int) -> None:
        """Begin a new stream in a slot: silence, and no frame seen."""
        for buffer in self.buffers.values():
            buffer[slot].zero_()

    def gather(self, slots: Tensor) -> State:
        """Copies of the rows of `slots`, int64 [streams], in its order."""
        return {layer: buffer.index_select(0, slots) for layer, buffer in self.buffers.items()}

    def scatter(self, slots: Tensor, state: State) -> None:
        """Put the rows back after a step."""
        for layer, rows in state.items():
            self.buffers[layer].index_copy_(0, slots, rows)
