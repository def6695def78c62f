"""Profilers inside a worker process: vLLM's CUDA profiler wrapper for Nsight, torch's for Chrome traces.

Engines name their work with `torch.profiler.record_function` (prefill, decode, code predictor, decode chunk); the CUDA
profiler turns these names into NVTX ranges while it runs. Main thread of a worker only.
"""

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from .options import ProfilerOptions

if TYPE_CHECKING:
    from vllm.config import ProfilerConfig


_END_BYTES = 1024
"""A trace's last words, its name among them, are in its last bytes."""


class ProfilerError(Exception):
    """The profiler cannot run here, did not start when it was told to, or could not write its trace."""


class TorchProfiler:
    """Writes one Chrome trace per start and stop."""

    def __init__(self, options: ProfilerOptions, name: str) -> None:
        """`name` is the replica's, the first part of the file names."""
        self._options = options
        self._name = name
        self._profile: torch.profiler.profile | None = None
        self._steps: int | None = None
        """Since the start; None while none is waited for."""

    def start(self) -> None:
        """Begin, at once or after `delay_iterations` steps. Raises ProfilerError when it does not run."""
        try:
            self._options.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProfilerError(f"{self._options.directory}: {error.strerror}") from None
        self._steps = 0
        if self._options.delay_iterations == 0:
            self._record()

    def _record(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities,
            record_shapes=self._options.record_shapes,
            profile_memory=self._options.with_memory,
            with_stack=self._options.with_stack,
        )
        self._profile.start()

    def step(self) -> None:
        """The engine did a step."""
        if self._steps is None:
            return
        self._steps += 1
        if self._steps == self._options.delay_iterations:
            self._record()
        elif self._steps == self._options.delay_iterations + self._options.most_steps:
            assert self._profile is not None
            self._profile.stop()
            self._steps = None

    def stop(self) -> list[Path]:
        """End, if `max_iterations` has not ended it before, and write; returns the file, none before the delay is over.

        Raises ProfilerError when the file is not there whole. Whatever happens, nothing is recorded any more.
        """
        (steps, self._steps), (profile, self._profile) = (self._steps, None), (self._profile, None)
        if profile is None:
            return []
        if steps is not None:
            profile.stop()
        path = (self._options.directory / f"{self._name}.{time.time_ns()}.trace.json").resolve()
        profile.export_chrome_trace(str(path))
        check_whole(path)
        return [path]


def check_whole(path: Path) -> None:
    """Raises ProfilerError for a trace that is missing or cut, of which torch only logs that it failed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _END_BYTES))
            end = file.read()
        if path.name.encode() in end and end.rstrip().endswith(b"}"):
            return
        reason = "the trace is cut"
    except OSError as error:
        reason = f"the trace is not there: {error.strerror}"
    raise ProfilerError(f"{path}: {reason}; is its directory gone, or its disk full?")


class CudaWindow(Protocol):
    """The part of vLLM's `CudaProfilerWrapper` that counts here."""

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def step(self) -> None: ...

    def stop(self) -> None: ...


class CudaProfiler:
    """Opens and closes the window that `ncu` and `nsys` wait for, through vLLM's wrapper; writes no file itself."""

    def __init__(self, options: ProfilerOptions, wrapper: CudaWindow) -> None:
        self._delayed = options.delay_iterations > 0
        self._wrapper = wrapper
        self._ranges: contextlib.ExitStack | None = None

    def start(self) -> None:
        """The wrapper only logs a failure to start, so whether it runs is looked at. Raises ProfilerError."""
        self._wrapper.start()
        if not self._delayed and not self._wrapper.is_running:
            self._wrapper.stop()
            raise ProfilerError("the CUDA profiler did not start; the worker's log says why")
        self._follow()

    def step(self) -> None:
        """The engine did a step."""
        self._wrapper.step()
        self._follow()

    def stop(self) -> list[Path]:
        """End, if `max_iterations` has not ended it before."""
        self._wrapper.stop()
        self._follow()
        return []

    def _follow(self) -> None:
        """Emit NVTX ranges exactly while the wrapper runs, which ends by itself after `max_iterations`."""
        if self._wrapper.is_running and self._ranges is None:
            self._ranges = contextlib.ExitStack()
            self._ranges.enter_context(torch.autograd.profiler.emit_nvtx())  # type: ignore[no-untyped-call]
        elif not self._wrapper.is_running and self._ranges is not None:
            self._ranges.close()
            self._ranges = None


Profiler = TorchProfiler | CudaProfiler


def vllm_profiler_config(options: ProfilerOptions) -> "ProfilerConfig":
    """The options of a `cuda` profiler as vLLM takes them. Raises ProfilerError without CUDA or vLLM."""
    if not torch.cuda.is_available():
        raise ProfilerError("the cuda profiler needs a CUDA device; use `torch` on this machine")
    try:
        from vllm.config import ProfilerConfig
    except ImportError as error:
        raise ProfilerError(f"the cuda profiler is vLLM's, which is not installed: {error}") from None
    return ProfilerConfig(profiler="cuda", delay_iterations=options.delay_iterations, max_iterations=options.most_steps)


def make_profiler(options: ProfilerOptions, name: str) -> Profiler:
    """The profiler that the options ask for. Raises ProfilerError when it cannot run on this machine."""
    if options.profiler == "torch":
        return TorchProfiler(options, name)
    config = vllm_profiler_config(options)
    from vllm.profiler.wrapper import CudaProfilerWrapper

    return CudaProfiler(options, CudaProfilerWrapper(config))
