"""`python -m tests.load --streams 1,64,128,256`: what the API process spends on a second of audio.

The server's workers only sleep, so this needs no GPU; the figures are the CPU time of the API process alone.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from duotone.profiling.bench import Load, Target, run_level
from duotone.profiling.server_process import free_port, read_process, running_server

from ..serving import CHECKPOINT

FRAMES = 62


def serve_command(port: int, slots: int, server: list[str]) -> list[str]:
    """A server of `slots` streams, logging as in production."""
    sizes = {"talker.slots": slots, "code2wav.slots": slots, "code2wav.max_batch_frames": 256}
    settings = [word for key, size in sizes.items() for word in ("--set", f"pipeline.{key}={size}")]
    return [sys.executable, *server, "serve", str(CHECKPOINT), "--port", str(port), *settings]


async def measure(streams: int, requests: int, server: list[str]) -> str:
    """A line of the table."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{port}"
        command = serve_command(port, streams, server)
        async with running_server(command, url, Path(folder) / "log", 60) as running:
            load = Load(requests=requests, warmup_rounds=0, frames=FRAMES, seed=0)
            await run_level(Target(url), Load(requests=8, warmup_rounds=0, frames=FRAMES), min(streams, 8))
            before = read_process(running.session)
            level = await run_level(Target(url), load, streams)
            after = read_process(running.session)
    assert before is not None
    assert after is not None
    summary, cpu_s = level.summary, after.cpu_s - before.cpu_s
    assert summary.first_audio_s is not None
    assert (summary.failures, summary.inexact) == ({}, 0), summary
    audio_s = sum(record.audio_s for record in level.records)
    chunks = sum(len(record.chunk_bytes) for record in level.records)
    figures = (
        streams,
        f"{summary.audio_s_per_s:.0f}",
        f"{1000 * summary.first_audio_s.p50:.0f} / {1000 * summary.first_audio_s.p99:.0f}",
        summary.dry_listeners,
        f"{chunks / len(level.records):.1f}",
        f"{1000 * cpu_s / audio_s:.2f}",
        f"{1000 * cpu_s / len(level.records):.2f}",
        f"{cpu_s / summary.wall_s:.2f}",
        f"{summary.client_cores:.2f}",
    )
    return "| " + " | ".join(map(str, figures)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load")
    parser.add_argument("--streams", default="1,64,128,256")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--server", default="-m tests.load.server", help="how Python starts the server")
    arguments = parser.parse_args()
    print(
        "| streams | audio s/s | first audio p50 / p99, ms | dry | chunks an answer | API CPU s for 1,000 s of audio "
        "| API CPU ms an answer | API cores | client cores |\n|" + "---|" * 9
    )
    for streams in map(int, arguments.streams.split(",")):
        requests = arguments.requests if streams > 1 else 16
        print(asyncio.run(measure(streams, requests, arguments.server.split())), flush=True)


if __name__ == "__main__":
    main()
