"""Measure the code predictor: `python -m tests.gpu.measure_predictor [--compare | --tune]`. Needs no vLLM.

Published 1.7B sizes, random weights, one captured graph for each number of rows. `--compare` shows what the launches'
overlap gains and what plain PyTorch takes, `--tune` looks for better tiles.
"""

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, fields, replace
from multiprocessing import get_context

import msgspec
import numpy as np
import torch
import triton

from duotone.stages.architecture import TalkerConfig
from duotone.stages.talker import programs
from duotone.stages.talker.frames import FrameCompleter, FrameWeights, NewFrames, PlainPredictor, Predictor
from duotone.stages.talker.kernels import FIXED_TILES, TILES, FusedPredictor, Tile
from duotone.stages.talker.model import Talker
from duotone.stages.types import CODEBOOKS, Sampling

from .hollow import PUBLISHED_1B7

ROWS = (1, 16, 64, 128)
REPLAYS = 30
COMPILERS = 16
PRODUCTS = {
    "qkv": (4096, 1024),
    "output": (1024, 2048),
    "gate_up": (6144, 1024),
    "down": (1024, 3072),
    "heads": (2048, 1024),
}
"""Outputs and inputs of each."""
Job = tuple[str, int, Tile]
"""A product, rows and its tile."""
SHARED_BYTES = 200_000
"""What a program's weights may take of shared memory."""


def random_weights(dtype: torch.dtype = torch.bfloat16) -> FrameWeights:
    """The published predictor with random weights, behind one layer of a Talker that speaks few words."""
    raw = json.loads((PUBLISHED_1B7 / "config.json").read_bytes())["talker_config"]
    config = replace(msgspec.convert(raw, TalkerConfig), num_hidden_layers=1, text_vocab_size=64)
    torch.manual_seed(0)
    with torch.device("cuda"):
        talker = Talker(config).to(dtype).requires_grad_(False)
        for parameter in talker.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.03)
    model = talker.model
    return FrameWeights.of(
        config,
        model.codec_embedding.weight,
        model.text_embedding.weight,
        talker.text_projection,
        talker.code_predictor,
    )


def graph_ms(predictor: Predictor, rows: int) -> tuple[float, torch.cuda.CUDAGraph]:
    """Time of completing `rows` frames in a captured graph, the median, and the graph."""
    completer = FrameCompleter(predictor, rows)
    for slot in range(rows):
        completer.enter(slot, Sampling(seed=slot))
    completer.capture([rows])
    each = np.arange(rows)
    new = NewFrames(each, each, np.zeros_like(each), np.zeros_like(each))
    hidden = torch.randn(rows, completer.slot_inputs.shape[1], device="cuda", dtype=completer.slot_inputs.dtype)
    completer.complete(hidden, torch.zeros(rows, dtype=torch.int64, device="cuda"), new)
    graph = completer._graphs[rows]
    return replay_ms(graph), graph


def replay_ms(graph: torch.cuda.CUDAGraph, replays: int = REPLAYS) -> float:
    """The median."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    graph.replay()
    for event in events[:-1]:
        event.record()
        graph.replay()
    events[-1].record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in itertools.pairwise(events))


def errors(weights: FrameWeights, predictors: dict[str, Predictor], rows: int) -> None:
    """Print the logits' error against float64, root mean square over root mean square, given the same codes."""
    exact = PlainPredictor(in_float64(weights))
    codes = torch.randint(0, weights.heads.shape[1], (CODEBOOKS, rows), device="cuda")
    start = torch.randn(rows, 1, weights.heads.shape[2], device="cuda", dtype=weights.heads.dtype)
    runs = {"float64": exact, **predictors}
    caches = {name: predictor.weights.new_cache(rows) for name, predictor in runs.items()}
    squares: dict[str, float] = defaultdict(float)
    for book in range(1, CODEBOOKS):
        inputs = weights.predictor_table[codes[book - 1] + weights.code_offsets[book - 1]][:, None]
        inputs = torch.cat((start, inputs), 1) if book == 1 else inputs
        logits = {
            name: predictor.logits(inputs.clone().to(predictor.weights.heads.dtype), caches[name], book)
            for name, predictor in runs.items()
        }
        for name, values in logits.items():
            squares[name] += (values - (logits["float64"] if name != "float64" else 0)).square().sum().item()
    for name in predictors:
        print(f"  {rows} rows, logits against float64: {name} {(squares[name] / squares['float64']) ** 0.5:.2e}")


def in_float64(weights: FrameWeights) -> FrameWeights:
    """What a pass reads, widened."""
    decoder = weights.decoder
    layers = tuple(
        type(layer)(layer.heads, *(getattr(layer, field.name).double() for field in fields(layer)[1:]))
        for layer in decoder.layers
    )
    wide = replace(decoder, layers=layers, norm=decoder.norm.double())
    rope = type(weights.rope)(weights.rope.cos.double(), weights.rope.sin.double())
    return replace(weights, decoder=wide, heads=weights.heads.double(), rope=rope)


def table(predictor: FusedPredictor, graph: torch.cuda.CUDAGraph, rows: int) -> None:
    """Print what each kind of launch adds: the time between the ends of the launch in front and of its own."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    layer = predictor.weights.decoder.layers[0]
    products = {"qkv": layer.qkv, "output": layer.output, "gate_up": layer.gate_up, "down": layer.down}
    order = ["qkv", "attend", "output", "gate_up", "down"] * len(predictor.weights.decoder.layers) + ["heads", "draw"]
    added, first, count = defaultdict(list), 0.0, 0
    for (_, before, _), (start, end, name) in itertools.pairwise(spans):
        kind = order[count % len(order)] if name in ("product", "attend", "draw") else "other"
        count += kind != "other"
        first = first or start
        added[kind].append(end - max(before, first))
    for kind, times in added.items():
        mean_us = sum(times) / len(times)
        weight = products.get(kind, predictor.weights.heads[0] if kind == "heads" else None)
        speed = f"{weight.nbytes / mean_us / 1000:7.0f} GB/s" if weight is not None else ""
        print(f"  {kind:8} {len(times) / 5:4.0f} launches, {mean_us:6.2f} us each, {sum(times) / 5000:6.3f} ms {speed}")


def candidates(name: str, rows: int) -> Iterator[Tile]:
    """Tiles worth trying."""
    columns, inner = PRODUCTS[name]
    blocks = {16: (16,), 64: (16, 32, 64), 128: (32, 64, 128)}[max(16, rows)]
    for block, width, split in itertools.product(blocks, (8, 16, 32, 64), (1, 2, 4, 8, 16)):
        count = columns // width * triton.cdiv(rows, block)
        fits = split * block // 16 in (4, 8, 16) and split * programs.DEPTH.value <= inner
        if fits and 2 * inner * width <= SHARED_BYTES and 40 <= count <= 400:
            yield Tile(block, width, split)


def compile_product(job: Job) -> None:
    """Fill Triton's cache on the disk. Compiles nothing that is there."""
    name, rows, tile = job
    columns, inner = PRODUCTS[name]
    bf16 = torch.bfloat16
    programs.product.warmup(
        *(bf16, bf16, torch.float32 if name == "heads" else bf16, bf16, 1 << 22, rows, columns, inner),
        *(inner // (tile.split * programs.DEPTH.value), 1e-6),
        INNER=inner,
        NORM=name not in ("output", "down"),
        GATED=name == "gate_up",
        ADD=name in ("output", "down"),
        EARLY=True,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        SPLIT=tile.split,
        num_warps=tile.split * tile.rows // 16,
        launch_pdl=True,
        grid=(1,),
    )


def compile_all(jobs: Iterable[Job]) -> None:
    """In processes of their own, which must be forked before this one uses the GPU."""
    with ProcessPoolExecutor(COMPILERS, mp_context=get_context("fork")) as pool:
        list(pool.map(compile_product, jobs))


def tile_of(name: str, rows: int) -> Tile:
    """The product's, for so many rows."""
    tile: Tile = getattr(next(tiles for limit, tiles in TILES if rows <= limit), name)
    return tile


def passes_ms(predictor: FusedPredictor, rows: int, passes: int = 3) -> float:
    """Time of some passes at book 8, draws left out."""
    cache = predictor.weights.new_cache(rows).normal_()
    inputs = torch.randn(rows, 1, cache.shape[3] * cache.shape[5], device="cuda", dtype=torch.bfloat16)
    predictor.logits(inputs, cache, 8)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(passes):
            predictor.logits(inputs, cache, 8)
    return replay_ms(graph, 12) / passes


def tune(weights: FrameWeights, rows: int) -> None:
    """Print the best tiles found: each product's in turn, the others as they are."""
    best = next(tiles for limit, tiles in TILES if rows <= limit)
    predictor = FusedPredictor(weights)
    best_ms = passes_ms(predictor, rows)
    print(f"{rows} rows: {best_ms * 1000:.1f} us a pass, draws left out", flush=True)
    for name in PRODUCTS:
        times = []
        for tile in candidates(name, rows):
            predictor._tiles = ((rows, replace(best, **{name: tile})),)
            times.append((passes_ms(predictor, rows), astuple(tile)))
        times.sort()
        if times[0][0] < best_ms:
            best_ms, best = times[0][0], replace(best, **{name: Tile(*times[0][1])})
        shown = ", ".join(f"{tile} {ms * 1000:.1f}" for ms, tile in times[:6])
        print(f"  {name}: {shown}; worst {times[-1][1]} {times[-1][0] * 1000:.1f}", flush=True)
    print(f"  {rows} rows: {best_ms * 1000:.1f} us a pass with {best}", flush=True)
    predictor._tiles = ((1 << 30, best),)
    print(f"  {rows} rows: {graph_ms(predictor, rows)[0]:.3f} ms for whole frames", flush=True)


def compare(weights: FrameWeights, rows: int) -> None:
    """Print the time of other ways."""
    apart, cold = FusedPredictor(weights), FusedPredictor(weights)
    apart._early, cold._ahead = False, [weights.heads[0, :0]] * len(cold._ahead)
    others: dict[str, Predictor] = {
        "weights not brought into the L2 cache": cold,
        "launches one behind the other": apart,
        "the same tiles for any number of rows": FusedPredictor(weights, FIXED_TILES),
        "plain PyTorch": PlainPredictor(weights),
    }
    for name, predictor in others.items():
        print(f"  {name}: {graph_ms(predictor, rows)[0]:.3f} ms", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    if arguments.tune:
        compile_all(
            (name, rows, tile) for name in PRODUCTS for rows in arguments.rows for tile in candidates(name, rows)
        )
        weights = random_weights()
        for rows in arguments.rows:
            tune(weights, rows)
        return
    # The first pass has two positions a row.
    compile_all(
        (name, n * rows, tile_of(name, n * rows)) for name in PRODUCTS for rows in arguments.rows for n in (1, 2)
    )
    weights = random_weights()
    fused = FusedPredictor(weights)
    for rows in arguments.rows:
        fused_ms, graph = graph_ms(fused, rows)
        print(f"{rows} rows: {fused_ms:.3f} ms", flush=True)
        table(fused, graph, rows)
        errors(weights, {"plain": PlainPredictor(weights), "fused": fused}, rows)
        if arguments.compare:
            compare(weights, rows)


if __name__ == "__main__":
    main()
