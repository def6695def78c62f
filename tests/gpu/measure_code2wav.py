"""Measure Code2Wav alone on a GPU: `python -m tests.gpu.measure_code2wav {speed,kernels,exact}`.

Published sizes, random weights, bfloat16; `exact` compares with the plain modules on the golden cases and the bundled
voice. Needs torch, triton, safetensors and msgspec alone.
"""

import argparse
import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from duotone.stages.architecture import CodecConfig
from duotone.stages.code2wav.decoder import CodecDecoder, load_decoder
from duotone.stages.code2wav.fused import Batch, FusedDecoder, FusedUnit
from duotone.stages.code2wav.graphs import GraphDecoder, batch_sizes
from duotone.stages.code2wav.layers import freeze
from duotone.stages.code2wav.products import Product, Rows, Tile
from duotone.stages.code2wav.quantizer import Codebook
from duotone.stages.types import CODEBOOKS, FRAME_S, SAMPLES_PER_FRAME
from duotone.stages.weights import WeightIndex

HERE = Path(__file__).parent
PUBLISHED = HERE / "published_1b7" / "speech_tokenizer"
GOLDEN = HERE.parent / "golden" / "custom_voice"
LARK = HERE.parents[1] / "voices" / "lark" / "speech_tokenizer"
LARK_CODES = HERE / "lark_codes.npy"
"""uint8 [60, 16]: what the voice says to a sentence."""
SHAPES = tuple(itertools.product((1, 16, 64, 128), (1, 4, 8)))
"""(streams, frames) of a step."""
MOST_FRAMES = max(streams * frames for streams, frames in SHAPES)
PEAK_TFLOPS, PEAK_GBS = 790, 4_300
"""What large products and copies reached on an H200 (bfloat16, through PyTorch)."""


def read_config(folder: Path) -> CodecConfig:
    """The sizes in a speech tokenizer's folder."""
    raw = msgspec.json.decode((folder / "config.json").read_bytes())["decoder_config"]
    known = {field.name for field in fields(CodecConfig)}
    return msgspec.convert({key: value for key, value in raw.items() if key in known}, CodecConfig)


def random_decoder(config: CodecConfig) -> CodecDecoder:
    """Frozen, float32, on the GPU."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        decoder = CodecDecoder(config)
        for module in decoder.modules():
            if isinstance(module, Codebook):
                module.embedding_sum.data.normal_()
    decoder.eval().requires_grad_(False)
    freeze(decoder)
    return decoder


def stored_decoder(folder: Path) -> tuple[CodecConfig, CodecDecoder]:
    """Frozen, float32, on the GPU."""
    config = read_config(folder)
    return config, load_decoder(config, WeightIndex.read(folder), torch.float32, "cuda")


def compile_sizes(part: int, parts: int) -> None:
    """Compile what every `parts`-th size of a batch needs into Triton's cache. Runs in a process of its own."""
    config = read_config(PUBLISHED)
    built = FusedDecoder(random_decoder(config), config, torch.bfloat16, 1, 16)
    for frames in batch_sizes(MOST_FRAMES)[part::parts]:
        built(*step_arguments(config, 1, frames))


def in_processes(work: Callable[..., None], parts: int, *arguments: object) -> None:
    """`work(*arguments, part, parts)` in as many processes at once."""
    with ProcessPoolExecutor(parts, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(functools.partial(work, *arguments, parts=parts), range(parts)))


def speed(decoder: CodecDecoder, config: CodecConfig) -> None:
    """Milliseconds from codes in host memory to samples in host memory, alone and one launch ahead."""
    held_mib = torch.cuda.memory_allocated() / 2**20
    start_s = time.perf_counter()
    built = FusedDecoder(decoder, config, torch.bfloat16, 128, 16)
    runner = GraphDecoder(built, MOST_FRAMES)
    torch.cuda.synchronize()
    print(f"start: {time.perf_counter() - start_s:.1f} s,", end=" ")
    print(f"GPU memory {torch.cuda.memory_reserved() / 2**20 - held_mib:.0f} MiB beyond the modules'")
    print("streams  frames  alone ms  pipelined ms  times real time")
    rng = np.random.default_rng(0)
    for streams, frames in SHAPES:
        codes = list(rng.integers(0, config.codebook_size, (streams, frames, CODEBOOKS)).astype(np.int16))
        slots, positions = list(range(streams)), [100] * streams
        alone = []
        for _ in range(8):
            began_s = time.perf_counter()
            runner.launch(slots, positions, codes)
            runner.read()
            alone.append(1000 * (time.perf_counter() - began_s))
        runs = 20
        runner.launch(slots, positions, codes)
        began_s = time.perf_counter()
        for _ in range(runs):
            runner.launch(slots, positions, codes)
            runner.read()
        ms = 1000 * (time.perf_counter() - began_s) / runs
        runner.read()
        times = 1000 * streams * frames * FRAME_S / ms
        print(f"{streams:7} {frames:7} {statistics.median(alone[2:]):9.3f} {ms:13.3f} {times:16.0f}", flush=True)


def make_batch(codes: Tensor, sources: list[int], slots: list[int], position: int) -> Batch:
    """As many frames, int [streams, frames, CODEBOOKS], of each of some streams of the same age."""
    streams, frames, _ = codes.shape
    total = streams * frames
    numbers = torch.zeros(5, total + 1, dtype=torch.int32)
    numbers[0, :streams], numbers[1, :streams] = torch.tensor(sources), torch.tensor(slots)
    numbers[2, :streams] = position
    numbers[3, :total] = torch.arange(streams).repeat_interleave(frames)
    numbers[4] = (frames * torch.arange(total + 1)).clamp(max=total)
    sources_, slots_, positions, owners, begins = numbers.cuda()
    flat = codes.to("cuda", torch.int32).flatten(0, 1).contiguous()
    return Batch(flat, owners[:total], begins, sources_[:total], slots_[:total], positions[:total])


def step_arguments(config: CodecConfig, streams: int, frames: int) -> tuple[Batch, Tensor]:
    """What a FusedDecoder is called with: random codes of streams of which each has had 100 frames."""
    slots = list(range(streams))
    codes = torch.randint(config.codebook_size, (streams, frames, CODEBOOKS))
    samples = torch.empty(streams * frames * SAMPLES_PER_FRAME, dtype=torch.int16, device="cuda")
    return make_batch(codes, slots, slots, 100), samples


@dataclass(frozen=True)
class Call:
    """A matrix product of a step, or a whole residual unit, and its arguments."""

    made_by: Product | FusedUnit
    run: Callable[[], None]
    given: Tensor
    made: list[Tensor]
    """What it writes to; some of it may be read first, and added to."""
    rows: int
    columns: int
    depth: int
    """Of all taps; of a residual unit those of both convolutions."""
    kind: tuple[object, ...]

    @property
    def name(self) -> str:
        return f"{type(self.made_by).__name__} {self.rows} x {self.columns} x {self.depth} {self.kind}"

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.depth


def record_calls(run: Callable[[], None]) -> list[Call]:
    """Every product of a step, in the order of their kernels."""
    calls: list[Call] = []
    product, whole = Product.__call__, FusedUnit._whole

    def record_product(self: Product, x: Rows, **options: Rows | None) -> None:
        kind = (self.activation, self.norm_eps is not None, self.taps, *sorted(options))
        again = functools.partial(product, self, x, **options)
        made = [rows.values for name, rows in options.items() if name != "added" and rows is not None]
        calls.append(Call(self, again, x.values, made, x.rows, self.columns, self.depth * self.taps, kind))
        again()

    def record_unit(self: FusedUnit, tile: Tile, x: Rows, *others: Rows | None) -> None:
        again = functools.partial(FusedUnit.__call__, self, x, *others)
        kind = (self.dilated.dilation, others[1] is not None)
        made = [rows.values for rows in others[1:] if rows is not None]
        calls.append(Call(self, again, x.values, made, x.rows, x.channels, 8 * x.channels, kind))
        whole(self, tile, x, *others)

    Product.__call__, FusedUnit._whole = record_product, record_unit
    run()
    Product.__call__, FusedUnit._whole = product, whole
    return calls


def kernels(decoder: CodecDecoder, config: CodecConfig, streams: int, frames: int) -> None:
    """The GPU time of each kernel of a step, launched without a graph."""
    built = FusedDecoder(decoder, config, torch.bfloat16, streams, 16)
    arguments = step_arguments(config, streams, frames)
    for _ in range(2):
        built(*arguments)
    calls = iter(record_calls(lambda: built(*arguments)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        built(*arguments)
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    table: dict[str, list[float]] = {}
    flops: dict[str, float] = {}
    for event in events:
        name = event.name
        if name in ("product", "residual_unit"):
            call = next(calls)
            name, flops[call.name] = call.name, call.flops
        table.setdefault(name, []).append(event.device_time)
    whole = sum(map(sum, table.values()))
    print(f"{streams} streams, {frames} frames: {whole / 1000:.3f} ms of kernels, {len(events)} launches")
    for name, times in sorted(table.items(), key=lambda item: -sum(item[1])):
        us = sum(times)
        rate = f"{flops[name] * len(times) / us / 1e6:6.0f} TFLOP/s" if name in flops else ""
        print(f"{us:9.1f} us {100 * us / whole:5.1f} % {len(times):3} x {name:70}{rate}")


@torch.inference_mode()
def decode_fused(config: CodecConfig, decoder: CodecDecoder, dtype: torch.dtype, codes: Tensor, chunk: int) -> Tensor:
    """[1, frames, 16] → float32 samples, in chunks, in slot 1 of 3, before a stream that nobody hears."""
    built = FusedDecoder(decoder, config, dtype, 3, max(16, chunk))
    heard, position = [], 0
    for part in codes.split(chunk, 1):
        count = part.shape[1] * SAMPLES_PER_FRAME
        samples = torch.empty(2 * count, device="cuda")
        source = 1 if position else built.silent_slot
        idle = [built.silent_slot, built.idle_slot]
        built(make_batch(torch.cat((part, part)), [source, idle[0]], [1, idle[1]], position), samples)
        heard.append(samples[None, :count])
        position += part.shape[1]
    return torch.cat(heard, 1)


def decibels(expected: Tensor, heard: Tensor) -> float:
    """Signal to noise."""
    return float(10 * torch.log10(expected.square().mean() / (expected - heard).square().mean()))


@torch.inference_mode()
def exact() -> None:
    """Against the reference's waveforms and the plain modules, in float32 and bfloat16."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    config, decoder = stored_decoder(GOLDEN / "checkpoint" / "speech_tokenizer")
    for name in ("codec_00", "codec_05", "codec_07"):
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            codes, wav = torch.from_numpy(arrays["codes"].astype(np.int32))[None].cuda(), arrays["wav"]
        for dtype, chunk in ((torch.float32, 1), (torch.float32, 16), (torch.float32, 7), (torch.bfloat16, 4)):
            heard = decode_fused(config, decoder, dtype, codes, chunk)
            worst = np.abs(heard[0].cpu().numpy() - wav).max()
            print(
                f"{name} {dtype} by {chunk}: worst {worst:.2e}, {decibels(torch.from_numpy(wav).cuda(), heard):.1f} dB"
            )
    config, decoder = stored_decoder(LARK)
    codes = torch.from_numpy(np.load(LARK_CODES).astype(np.int32))[None].cuda()
    expected = decoder(codes.long())
    for dtype, chunk in ((torch.float32, 4), (torch.bfloat16, 1), (torch.bfloat16, 8)):
        heard = decode_fused(config, decoder, dtype, codes, chunk)
        print(f"lark {dtype} by {chunk}: {decibels(expected, heard):.1f} dB", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "kernels", "exact"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument(
        "--warm", action="store_true", help="compile first, in processes: a cold start is not of interest"
    )
    parser.add_argument("--processes", type=int, default=14)
    arguments = parser.parse_args()
    config = read_config(PUBLISHED)
    match arguments.what:
        case "speed":
            if arguments.warm:
                in_processes(compile_sizes, arguments.processes)
            speed(random_decoder(config), config)
        case "kernels":
            kernels(random_decoder(config), config, arguments.streams, arguments.frames)
        case "exact":
            exact()


if __name__ == "__main__":
    main()
