"""Try tiles for the products of Code2Wav's steps on a GPU: `python -m tests.gpu.tune_code2wav --streams 8 --frames 8`.

Published sizes, random weights, bfloat16. Each call is timed behind one that fills the second-level cache with other
data, as the Talker does, and one that reads the call's input, which the launch in front of it has just written. Results
are compared with those of the tile that is chosen now. Needs torch, triton, safetensors, pydantic, rich and msgspec.
"""

import argparse
import contextlib
import time
from collections.abc import Callable
from dataclasses import astuple

import torch
from torch import Tensor

from duotone.stages.code2wav import fused, products
from duotone.stages.code2wav.fused import FusedDecoder, FusedUnit
from duotone.stages.code2wav.products import Tile

from .measure_code2wav import (
    PUBLISHED,
    Call,
    decibels,
    in_processes,
    random_decoder,
    read_config,
    record_calls,
    step_arguments,
)

CHOSEN = products.choose_tile, fused.choose_unit_tile
FEW = (
    *((m, n, 128, 4, stages) for m, n in ((32, 32), (32, 64), (64, 32)) for stages in (4, 6)),
    *((16, 64, 128, 4, 4), (32, 32, 256, 4, 3), (64, 64, 128, 4, 4), (64, 64, 64, 4, 7)),
)
"""Tiles (m, n, k, warps, stages) for up to 128 rows."""
MANY = (
    *((64, 64, 64, 4, 4), (64, 64, 64, 4, 7), (64, 64, 128, 4, 4), (64, 32, 128, 4, 6)),
    *((64, 128, 64, 4, 3), (64, 128, 64, 4, 5), (128, 64, 64, 4, 3), (128, 64, 64, 4, 5), (128, 64, 128, 4, 3)),
    *((128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3)),
)
"""For more than 64."""
UNITS = {
    192: ((64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 8, 3), (128, 64, 8, 3), (128, 64, 8, 4)),
    96: ((128, 32, 4, 3), (128, 32, 4, 4), (128, 32, 4, 5), (64, 32, 4, 4), (256, 32, 8, 3), (256, 32, 8, 4)),
}
"""Channels → tiles (m, k, warps, stages) of a whole residual unit."""
FLUSH_BYTES = 96 * 2**20
"""More than the second-level cache holds."""
CALLS, REPLAYS = 8, 5


def trials(call: Call) -> list[Tile]:
    """The tiles to try for a call."""
    if isinstance(call.made_by, FusedUnit) and call.made_by.packed is not None:
        return []  # computed by a kernel that has no tiles to choose
    if isinstance(call.made_by, FusedUnit):
        return [Tile(m, call.columns, k, warps, stages) for m, k, warps, stages in UNITS[call.columns]]
    found = [Tile(*tile) for tile in (*FEW * (call.rows <= 128), *MANY * (call.rows > 64))]
    most_m, most_n, depth = max(64, call.rows), max(64, call.columns), call.made_by.depth
    return [tile for tile in found if tile.m <= most_m and tile.n <= most_n and depth % tile.k == 0]


def use(tile: Tile | None) -> None:
    """Let every product have this tile; None: its own again."""
    if tile is None:
        products.choose_tile, fused.choose_unit_tile = CHOSEN
    else:
        products.choose_tile = fused.choose_unit_tile = lambda *_: tile


def calls_of_step(streams: int, frames: int) -> dict[str, list[Call]]:
    """The calls of a step of the published sizes, by kind."""
    config = read_config(PUBLISHED)
    built = FusedDecoder(random_decoder(config), config, torch.bfloat16, streams, 16)
    found: dict[str, list[Call]] = {}
    for call in record_calls(lambda: built(*step_arguments(config, streams, frames))):
        found.setdefault(call.name, []).append(call)
    return found


def compile_some(streams: int, frames: int, part: int, parts: int) -> None:
    """Compile every `parts`-th pair of call and tile into Triton's cache. Runs in a process of its own."""
    pairs = [(call, tile) for call, *_ in calls_of_step(streams, frames).values() for tile in (None, *trials(call))]
    for call, tile in pairs[part::parts]:
        use(tile)
        with contextlib.suppress(Exception):  # too much shared memory
            call.run()
    torch.cuda.synchronize()


def graph_us(launches: list[Callable[[], object]]) -> float:
    """Of some launches, one behind the other, CALLS times in a graph; the best of REPLAYS."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    for one in launches:  # what is loaded with a first launch cannot be captured
        one()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        for one in launches * CALLS:
            one()
    taken = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(1000 * begin.elapsed_time(end) / CALLS)
    return min(taken)


def cold_us(call: Call, flush: Tensor) -> float:
    """Time of a call that finds its input in the second-level cache and its weights in memory."""
    sink = call.given.new_empty(())
    before = [lambda: flush.fill_(1), lambda: torch.amax(call.given, (0, 1), out=sink)]
    return graph_us([*before, call.run]) - graph_us(before)


def outcome(call: Call, before: list[Tensor]) -> list[Tensor]:
    """What a call makes of what its outputs held `before`."""
    for tensor, held in zip(call.made, before, strict=True):
        tensor.copy_(held)
    call.run()
    return [tensor.to(torch.float32, copy=True) for tensor in call.made]


def tune(call: Call, flush: Tensor) -> tuple[float, list[tuple[float, float, Tile]]]:
    """Microseconds now; and of each tile that runs with how it compares in decibels, fastest first."""
    use(None)
    before = [tensor.clone() for tensor in call.made]
    expected, now_us, found = outcome(call, before), cold_us(call, flush), []
    for tile in trials(call):
        use(tile)
        with contextlib.suppress(Exception):
            alike = min(map(decibels, expected, outcome(call, before)))
            found.append((cold_us(call, flush), alike, tile))
    use(None)
    outcome(call, before)
    return now_us, sorted(found, key=lambda trial: trial[0])


@torch.inference_mode()
def main() -> None:
    """Compile in processes, then try one call of each kind, and print what a step could gain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--processes", type=int, default=14)
    given = parser.parse_args()
    start_s = time.perf_counter()
    in_processes(compile_some, given.processes, given.streams, given.frames)
    print(f"compiled in {time.perf_counter() - start_s:.0f} s", flush=True)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    whole_us = best_us = 0.0
    for name, calls in calls_of_step(given.streams, given.frames).items():
        now_us, found = tune(calls[0], flush)
        whole_us += len(calls) * now_us
        best_us += len(calls) * min([now_us, *(us for us, _, _ in found)])
        best = "; ".join(f"{us:.1f} us {alike:.0f} dB {astuple(tile)}" for us, alike, tile in found[:3])
        rate = calls[0].flops / now_us / 1e6
        print(f"{len(calls)} x {name}: {now_us:.1f} us {rate:.0f} TFLOP/s now; {best}", flush=True)
    print(f"all: {whole_us:.0f} us now, {best_us:.0f} us with the best tiles")


if __name__ == "__main__":
    main()
