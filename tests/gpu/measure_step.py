"""Measure a Talker step on vLLM: `python -m tests.gpu.measure_step [CHECKPOINT]`, by default published sizes.

Weights are random: the arithmetic does not depend on them. With `--trace` also what the GPU and the host do in a step.
"""

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.messages import Abort, Speak
from duotone.stages.pipeline import TalkerOptions, VllmOptions
from duotone.stages.talker.frames import MadeFrames, NewFrames
from duotone.stages.talker.vllm_start import start_vllm_talker
from duotone.stages.types import CODEBOOKS, FRAME_S, NO_CODE, PromptPlan, Sampling

from .hollow import PUBLISHED_1B7, hollow_checkpoint

PROMPT_POSITIONS = 40
STREAM_FRAMES = 62
TRACED_BATCH = 64
TRACED_STEPS = 20
PROFILED_STEPS = 50


class Bench:
    """An engine and requests for it whose answers have a fixed length."""

    def __init__(self, directory: Path, options: TalkerOptions) -> None:
        start_s = time.perf_counter()
        self.engine = start_vllm_talker(read_checkpoint(directory), options)
        self.start_s = time.perf_counter() - start_s
        runner = self.engine._core.engine_core.model_executor.driver_worker.worker.model_runner
        self.frames = runner.model_state.frames
        self.keys = 0

    def speak(self, frames: int) -> int:
        """Add a request of so many frames; returns its key."""
        rows = np.full((PROMPT_POSITIONS, 1 + CODEBOOKS), NO_CODE, "<i4")
        rows[:, 0] = np.random.default_rng(self.keys).integers(0, 200, PROMPT_POSITIONS)
        rows[:, 1] = 1
        sampling = Sampling(seed=self.keys, min_new_frames=frames, max_new_frames=frames)
        self.engine.accept(Speak(self.keys, PromptPlan(rows.tobytes()), sampling))
        self.keys += 1
        return self.keys - 1

    @contextmanager
    def decoding(self, batch: int) -> Iterator[None]:
        """`batch` requests that have been prefilled and decode on; aborted at the end."""
        keys = [self.speak(frames=900) for _ in range(batch)]
        for _ in range(20):
            self.engine.step()
        yield
        self.abort(keys)

    def abort(self, keys: Sequence[int]) -> None:
        """End these requests, and let the steps in flight end."""
        self.engine.accept(Abort(list(keys)))
        for _ in range(3):
            self.engine.step()

    def step_ms(self, steps: int) -> float:
        """Time of a step, host gaps included: the mean over `steps`."""
        start_s = time.perf_counter()
        for _ in range(steps):
            self.engine.step()
        return 1000 * (time.perf_counter() - start_s) / steps

    @contextmanager
    def without_predictor(self) -> Iterator[None]:
        """Steps end with the hidden states: vLLM and the backbone alone."""
        make = self.frames.make
        self.frames.make = lambda hidden, new: MadeFrames(
            torch.zeros(len(hidden), CODEBOOKS, dtype=torch.int16, device=hidden.device),
            torch.ones(2, len(hidden), dtype=torch.int64, device=hidden.device),
        )
        yield
        self.frames.make = make

    def predictor_ms(self, batch: int, runs: int = 30) -> float:
        """Time on the GPU of making `batch` frames: the median."""
        hidden = torch.randn(batch, self.frames.slot_inputs.shape[1], device="cuda", dtype=torch.bfloat16)
        times = []
        rows = np.arange(batch)
        for row in range(batch):
            self.frames.enter(row, Sampling(seed=row))
        new = NewFrames(rows, rows, np.zeros_like(rows), np.zeros_like(rows))
        for _ in range(runs):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            self.frames.make(hidden, new)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)

    def continuous(self, concurrent: int, requests: int) -> tuple[float, float]:
        """`requests` of STREAM_FRAMES, `concurrent` at once, each followed by another.

        Returns milliseconds a step and seconds of audio a second.
        """
        left, frames, steps = requests, 0, 0
        for index in range(concurrent):  # of every age, or they would all end in one step
            self.speak(STREAM_FRAMES * (index + 1) // concurrent or 1)
        left -= concurrent
        start_s = time.perf_counter()
        while left:
            event = self.engine.step()
            steps += 1
            if event is not None:
                frames += len(event.keys)
                joining = min(len(event.ended), left)
                for _ in range(joining):
                    self.speak(STREAM_FRAMES)
                left -= joining
        elapsed_s = time.perf_counter() - start_s
        self.abort(range(self.keys))
        return 1000 * elapsed_s / steps, frames * FRAME_S / elapsed_s


def traced(bench: Bench, file: Path) -> None:
    """Trace some steps, and print how busy the GPU was and with what. Tracing slows the host, not the kernels."""
    untraced_ms = bench.step_ms(100)
    with torch.profiler.profile() as profile:
        bench.step_ms(TRACED_STEPS)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(file))
    events = [
        event
        for event in json.loads(file.read_text())["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    busy_us, covered_us = 0.0, 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        end_us = event["ts"] + event["dur"]
        busy_us += max(0.0, end_us - max(covered_us, event["ts"]))
        covered_us = max(covered_us, end_us)
    busy_ms = busy_us / TRACED_STEPS / 1000
    print(
        f"batch {TRACED_BATCH}: {len(events) / TRACED_STEPS:.0f} kernels and copies a step, GPU busy {busy_ms:.2f} ms ",
        end="",
    )
    print(f"of a step's {untraced_ms:.2f} ms, idle {1 - busy_ms / untraced_ms:.0%}")
    time_us: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in events:
        time_us[event["name"][:90]] += event["dur"]
        count[event["name"][:90]] += 1
    for name, total_us in time_us.most_common(24):
        print(f"  {total_us / TRACED_STEPS:8.1f} us a step {count[name] / TRACED_STEPS:7.1f} times  {name}")


def profiled(bench: Bench) -> None:
    """Print what the host does in a step; profiling doubles its time."""
    profile = cProfile.Profile()
    profile.runcall(bench.step_ms, PROFILED_STEPS)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 128])
    parser.add_argument("--trace", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.checkpoint or hollow_checkpoint(PUBLISHED_1B7, Path(scratch) / "hollow")
        options = TalkerOptions(
            engine="vllm",
            devices="cuda",
            dtype="bfloat16",
            slots=max(arguments.batches),
            max_positions=1024,
            vllm=VllmOptions(load_format="dummy"),
        )
        bench = Bench(directory, options)
        print(f"start: {bench.start_s:.0f} s", flush=True)
        bench.continuous(max(arguments.batches), 2 * max(arguments.batches))  # whatever compiles at first use
        print("batch   step ms   vLLM and backbone ms   predictor ms (GPU)", flush=True)
        for batch in arguments.batches:
            with bench.decoding(batch):
                step_ms = bench.step_ms(100)
                with bench.without_predictor():
                    bench.step_ms(10)
                    backbone_ms = bench.step_ms(100)
            print(f"{batch:5} {step_ms:9.2f} {backbone_ms:22.2f} {bench.predictor_ms(batch):20.2f}", flush=True)
        print("prefill and decode mixed, one request joins for each that has ended:")
        for batch in arguments.batches:
            step_ms, audio_s = bench.continuous(batch, 4 * batch)
            print(f"{batch:5} {step_ms:9.2f} ms a step, {audio_s:7.1f} s of audio a second", flush=True)
        if arguments.trace is not None:
            with bench.decoding(TRACED_BATCH):
                traced(bench, arguments.trace)
                profiled(bench)
        bench.engine.close()


if __name__ == "__main__":
    main()
