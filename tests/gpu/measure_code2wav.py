"""Measure Code2Wav alone: `python -m tests.gpu.measure_code2wav [--device cuda]`, published sizes, random weights.

Prints the time of an engine's step, from codes in host memory to samples in host memory, by streams and frames a step.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.code2wav.engine import Code2WavEngine
from duotone.stages.messages import Abort, Decode
from duotone.stages.pipeline import Code2WavOptions
from duotone.stages.types import CODEBOOKS, FRAME_S

from .hollow import PUBLISHED_1B7, servable_checkpoint

SHAPES = ((1, 1), (1, 4), (16, 1), (16, 4), (64, 1), (64, 2), (64, 4), (64, 8), (128, 4))
"""(streams, frames) of a step."""
RUNS = 7
WARM_UP_RUNS = 2


def step_ms(engine: Code2WavEngine, keys: range, frames: int, rng: np.random.Generator) -> float:
    """Milliseconds of one step over the streams `keys`: the median of some, after a warm-up."""
    times = []
    for _ in range(RUNS):
        for key in keys:
            codes = rng.integers(0, engine.codebook_size, (frames, CODEBOOKS)).astype("<i2")
            engine.accept(Decode(key, codes.tobytes(), last=False, deadline_s=0.0))
        start_s = time.perf_counter()
        samples = engine.step()
        times.append(1000 * (time.perf_counter() - start_s))
        assert samples is not None
        assert samples.batch == len(keys), "the streams did not fit into one step"
    engine.accept(Abort(list(keys)))
    return statistics.median(times[WARM_UP_RUNS:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    most_frames = max(streams * frames for streams, frames in SHAPES)
    options = Code2WavOptions(
        devices=arguments.device,
        dtype=arguments.dtype,
        slots=max(streams for streams, _ in SHAPES),
        max_batch_frames=most_frames,
    )
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = read_checkpoint(servable_checkpoint(PUBLISHED_1B7, Path(scratch) / "checkpoint"))
        start_s = time.perf_counter()
        engine = Code2WavEngine(checkpoint, options)
        print(f"start: {time.perf_counter() - start_s:.1f} s", flush=True)
        print("streams  frames   step ms   times real time")
        key = 0
        for streams, frames in SHAPES:
            ms = step_ms(engine, range(key, key + streams), frames, rng)
            key += streams
            print(f"{streams:7} {frames:7} {ms:9.1f} {1000 * streams * frames * FRAME_S / ms:17.0f}", flush=True)
        engine.close()


if __name__ == "__main__":
    main()
