"""Training steps as CUDA graphs: small models are bound by launching kernels, a replay launches them all at once."""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3


class CapturedStep:
    """`step`, a whole update without inputs of changing shape, run eagerly `WARM_UP` times, then captured and replayed.

    What it returns are static tensors, overwritten by the next replay. On a CPU every call is eager.
    """

    def __init__(self, step: Callable[[], dict[str, Tensor]], device: torch.device) -> None:
        self._step, self._device = step, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0
        self._losses: dict[str, Tensor] = {}

    def __call__(self) -> dict[str, Tensor]:
        if self._device.type != "cuda":
            return self._step()
        if self._graph is not None:
            self._graph.replay()
            return self._losses
        self._calls += 1
        if self._calls <= WARM_UP:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                losses = self._step()
            torch.cuda.current_stream().wait_stream(side)
            return losses
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._losses = self._step()
        self._graph = graph
        graph.replay()
        return self._losses
