"""`python -m tests.load.measure --streams 1,64,128,256`: what the API process spends on a second of audio.

The server's workers only sleep, so this needs no GPU; the figures are the CPU time of the API process alone.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from duotone.profiling.bench import Level, Load, Target, run_level
from duotone.profiling.server_process import Server, free_port, read_process, running_server

from ..serving import CHECKPOINT

FRAMES = 62


def serve_command(port: int, slots: int) -> list[str]:
    """A server of `slots` streams, set as on a GPU, logging as in production."""
    sizes = {
        "talker.slots": slots,
        "code2wav.slots": slots,
        "code2wav.max_chunk_frames": 16,
        "code2wav.max_batch_frames": 256,
    }
    settings = [word for key, size in sizes.items() for word in ("--set", f"pipeline.{key}={size}")]
    return [sys.executable, "-m", "tests.load.server", "serve", str(CHECKPOINT), "--port", str(port), *settings]


def api_cpu_s(server: Server) -> float:
    """CPU time of the server's own process, its workers' aside."""
    process = read_process(server.session)
    assert process is not None
    return process.cpu_s


async def measure(streams: int, requests: int) -> tuple[Level, float]:
    """What the listeners got, and the CPU seconds that it took the API process."""
    port = free_port()
    target = Target(f"http://127.0.0.1:{port}")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        async with running_server(serve_command(port, streams), target.url, log, start_timeout_s=60) as server:
            await run_level(target, Load(requests=8, warmup_rounds=0, frames=FRAMES), min(streams, 8))
            before_s = api_cpu_s(server)
            level = await run_level(target, Load(requests=requests, warmup_rounds=0, frames=FRAMES, seed=0), streams)
            return level, api_cpu_s(server) - before_s


def line(level: Level, cpu_s: float) -> str:
    """A line of the table."""
    summary, records = level.summary, level.records
    assert summary.first_audio_s is not None
    figures = (
        summary.streams,
        f"{summary.audio_s_per_s:.0f}",
        f"{1000 * summary.first_audio_s.p50:.0f} / {1000 * summary.first_audio_s.p99:.0f}",
        summary.dry_listeners,
        f"{sum(len(record.chunk_bytes) for record in records) / len(records):.1f}",
        f"{1000 * cpu_s / sum(record.audio_s for record in records):.2f}",
        f"{1000 * cpu_s / len(records):.2f}",
        f"{cpu_s / summary.wall_s:.2f}",
        f"{summary.client_cores:.2f}",
    )
    return "| " + " | ".join(map(str, figures)) + " |"


HEAD = (
    "| streams | audio s/s | first audio p50 / p99, ms | dry | chunks an answer | API CPU s for 1,000 s of audio "
    "| API CPU ms an answer | API cores | client cores |\n|" + "---|" * 9
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load.measure")
    parser.add_argument("--streams", default="1,64,128,256")
    parser.add_argument("--requests", type=int, default=512)
    arguments = parser.parse_args()
    print(HEAD)
    for streams in map(int, arguments.streams.split(",")):
        requests = arguments.requests if streams > 1 else 16
        print(line(*asyncio.run(measure(streams, requests))), flush=True)


if __name__ == "__main__":
    main()
