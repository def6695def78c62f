"""Serve and measure over HTTP: `python -m tests.gpu.serve_and_measure one_gpu --streams 1,16,64,128 --out results`.

Starts `duotone serve` once with a profile on a checkpoint of published sizes with random weights, runs the load of each
number of streams in turn, prints one table, and leaves under `--out` all records, the server's log and its metrics.
Without a profile it serves the bundled voice on the CPU. Every answer has exactly `--frames` frames.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from duotone.profiling.bench import Level, Load, Target, run_level, write_results
from duotone.profiling.compare import PROGRAM
from duotone.profiling.figures import as_text, summary_table
from duotone.profiling.measures import Summary
from duotone.profiling.server_process import (
    ServerFailed,
    cancelled_when_terminated,
    free_port,
    running_server,
    session_processes,
)

from .hollow import PUBLISHED_1B7, servable_checkpoint

START_TIMEOUT_S = 400.0
EXIT_INTERRUPTED = 130
REQUESTS_PER_STREAM = 32
"""At most: one stream alone would take minutes for what hundreds do in seconds."""
GPU_INTERVAL_MS = 250
GPU_QUERY = ("nvidia-smi", "--query-gpu=index,memory.used,utilization.gpu", "--format=csv,noheader,nounits")


@dataclass
class Gpus:
    """What nvidia-smi read since the last `take`; nothing where there is none."""

    used_mib: dict[int, float] = field(default_factory=dict)
    """GPU → the most that was in use, by whichever process."""
    busy_percent: dict[int, list[float]] = field(default_factory=dict)
    """GPU → readings of the share of the time in which a kernel ran."""

    def read(self, line: str) -> None:
        index, used_mib, busy_percent = (float(part) for part in line.split(","))
        gpu = int(index)
        self.used_mib[gpu] = max(self.used_mib.get(gpu, 0.0), used_mib)
        self.busy_percent.setdefault(gpu, []).append(busy_percent)

    def take(self) -> "GpuLoad":
        """What was read so far, forgotten here."""
        busy = {gpu: sum(readings) / len(readings) for gpu, readings in self.busy_percent.items()}
        load = GpuLoad(self.used_mib, busy)
        self.used_mib, self.busy_percent = {}, {}
        return load


@dataclass(frozen=True)
class GpuLoad:
    """The GPUs of the machine during one load, by index."""

    used_mib: dict[int, float]
    busy_percent: dict[int, float]


@asynccontextmanager
async def watched_gpus() -> AsyncIterator[Gpus]:
    """Let nvidia-smi read the GPUs while the block runs."""
    gpus = Gpus()
    if shutil.which(GPU_QUERY[0]) is None:
        yield gpus
        return
    process = await asyncio.create_subprocess_exec(
        *GPU_QUERY, f"--loop-ms={GPU_INTERVAL_MS}", stdout=asyncio.subprocess.PIPE
    )

    async def follow() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            gpus.read(line.decode())

    following = asyncio.create_task(follow())
    try:
        yield gpus
    finally:
        following.cancel()
        process.kill()
        await process.wait()


def serve_command(arguments: argparse.Namespace, checkpoint: Path | None, port: int) -> list[str]:
    """`duotone serve` with the profile; random weights are drawn on the device."""
    settings = list(arguments.settings)
    words = [str(checkpoint)] if checkpoint else []
    if arguments.profile:
        words += ["--config", arguments.profile]
        settings.append("pipeline.talker.vllm.load_format=dummy")
    words += [word for setting in settings for word in ("--set", setting)]
    return [*PROGRAM, "serve", *words, "--host", "127.0.0.1", "--port", str(port)]


async def measure(arguments: argparse.Namespace, checkpoint: Path | None) -> bool:
    """One start of the server, every number of streams. Returns whether every answer was as asked."""
    out: Path = arguments.out
    port = free_port()
    target, command = Target(f"http://127.0.0.1:{port}"), serve_command(arguments, checkpoint, port)
    levels: list[Level] = []
    gpu_loads: list[GpuLoad] = []
    begun_s = time.monotonic()
    with cancelled_when_terminated():
        async with (
            running_server(command, target.url, out / "server.log", START_TIMEOUT_S) as server,
            watched_gpus() as gpus,
        ):
            start_s = time.monotonic() - begun_s
            print(f"ready after {start_s:.1f} s", flush=True)
            for streams in arguments.streams:
                requests = min(arguments.requests, REQUESTS_PER_STREAM * streams)
                load = Load(requests, warmup_rounds=2, frames=arguments.frames, seed=0)
                gpus.take()
                levels.append(await run_level(target, load, streams))
                gpu_loads.append(gpus.take())
                print(in_short(levels[-1].summary), flush=True)
                write_results(out / f"{streams}-streams.json", target, load, levels[-1:])
            (out / "metrics.txt").write_bytes(await exposed(target))
    left = session_processes(server.session)
    assert not left, f"left behind: {left}"
    write_outcome(out / "outcome.json", command, start_s, levels, gpu_loads)
    show(levels, gpu_loads)
    return not any(level.summary.failures or level.summary.inexact for level in levels)


def write_outcome(
    path: Path, command: list[str], start_s: float, levels: list[Level], gpu_loads: list[GpuLoad]
) -> None:
    """Figures without records."""
    rows = [
        {"summary": asdict(level.summary), "stages": list(map(asdict, level.stages)), "gpus": asdict(gpu_load)}
        for level, gpu_load in zip(levels, gpu_loads, strict=True)
    ]
    path.write_text(json.dumps({"command": command, "start_s": start_s, "levels": rows}, indent=1) + "\n")


async def exposed(target: Target) -> bytes:
    """The server's own metrics, as it exposes them."""
    async with target.session() as session, session.get("/metrics") as answer:
        return await answer.read()


def in_short(summary: Summary) -> str:
    """A line for those who wait."""
    first = summary.first_audio_s
    latency = f"first audio {1e3 * first.p50:.0f} / {1e3 * first.p99:.0f} ms" if first else "no audio"
    flaws = f"{summary.dry_listeners} dry, {summary.inexact} inexact, {sum(summary.failures.values())} failed"
    return f"{summary.streams} streams: {summary.audio_s_per_s:.1f} s of audio a second, {latency}, {flaws}"


def show(levels: list[Level], gpu_loads: list[GpuLoad]) -> None:
    """A column for each number of streams."""
    table = summary_table([level.summary for level in levels], [level.stages for level in levels])
    for gpu in sorted({gpu for load in gpu_loads for gpu in load.used_mib}):
        used_gb = (load.used_mib[gpu] * 2**20 / 1e9 if gpu in load.used_mib else None for load in gpu_loads)
        table.add_row(f"GPU {gpu} memory, GB", *(as_text(value, 1) for value in used_gb))
        table.add_row(f"GPU {gpu} busy, %", *(as_text(load.busy_percent.get(gpu), 0) for load in gpu_loads))
    Console(width=100).print(table)
    sys.stdout.flush()


def main() -> int:
    """Parse, make a checkpoint, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", help="a profile, as `duotone serve --config` takes it")
    parser.add_argument("--streams", default="1,16,64,128", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--requests", default=512, type=int, help="of each number of streams, at most 32 a stream")
    parser.add_argument("--frames", default=62, type=int, help="of every answer")
    parser.add_argument("--checkpoint", type=Path, help="instead of one of published sizes with random weights")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("--out", type=Path, default=Path("measured"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint: Path | None = arguments.checkpoint
        if arguments.profile and checkpoint is None:
            checkpoint = servable_checkpoint(PUBLISHED_1B7, Path(scratch) / "checkpoint")
        try:
            return 0 if asyncio.run(measure(arguments, checkpoint)) else 1
        except ServerFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        except (KeyboardInterrupt, asyncio.CancelledError):
            return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
