"""Measure the code predictor: `python -m tests.gpu.measure_predictor [--plain]`. Needs no vLLM.

Published 1.7B sizes, random weights, one captured graph for each number of rows. `--plain` also times PyTorch's.
"""

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from dataclasses import fields, replace

import msgspec
import numpy as np
import torch

from duotone.stages.architecture import TalkerConfig
from duotone.stages.talker.frames import FrameMaker, FrameWeights, NewFrames, PlainPredictor
from duotone.stages.talker.kernels import FusedPredictor
from duotone.stages.talker.model import Talker
from duotone.stages.types import CODEBOOKS, Sampling

from .hollow import PUBLISHED_1B7

ROWS = (1, 16, 64, 128)
REPLAYS = 30


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
        talker.codec_head.weight,
        model.codec_embedding.weight,
        model.text_embedding.weight,
        talker.text_projection,
        talker.code_predictor,
    )


def graph_ms(predictor: PlainPredictor, rows: int) -> tuple[float, torch.cuda.CUDAGraph]:
    """Time of making `rows` frames in a captured graph, the median, and the graph."""
    maker = FrameMaker(predictor, rows)
    for slot in range(rows):
        maker.enter(slot, Sampling(seed=slot))
    maker.capture([rows])
    each = np.arange(rows)
    new = NewFrames(each, each, np.zeros_like(each), np.zeros_like(each))
    hidden = torch.randn(rows, maker.slot_inputs.shape[1], device="cuda", dtype=maker.slot_inputs.dtype)
    maker.make(hidden, new)
    graph = maker._graphs[rows]
    return replay_ms(graph), graph


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """The median."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    graph.replay()
    for event in events[:-1]:
        event.record()
        graph.replay()
    events[-1].record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in itertools.pairwise(events))


def errors(weights: FrameWeights, predictors: dict[str, PlainPredictor], rows: int) -> None:
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


def table(graph: torch.cuda.CUDAGraph) -> None:
    """Print what each kind of launch adds to the one in front of it, or takes if that had ended."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    added = defaultdict(list)
    for (_, before, _), (start, end, name) in itertools.pairwise(spans):
        kind = name if name in ("predictor_frames", "finish") else "other"
        added[kind].append(end - before if start < before else end - start)
    for kind, times in added.items():
        print(f"  {kind:16} {len(times) / 5:4.0f} launches, {sum(times) / len(times):6.2f} us each")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    weights = random_weights()
    fused, plain = FusedPredictor(weights), PlainPredictor(weights)
    for rows in arguments.rows:
        fused_ms, graph = graph_ms(fused, rows)
        print(f"{rows} rows: {fused_ms:.3f} ms", flush=True)
        table(graph)
        errors(weights, {"plain": plain, "fused": fused}, rows)
        if arguments.plain:
            print(f"  plain PyTorch: {graph_ms(plain, rows)[0]:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
