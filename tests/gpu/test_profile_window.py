"""Two curl commands open and close the CUDA profiler window in running stages, as Nsight Compute sees from outside."""

import contextlib
import csv
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter

import httpx
import pytest

from ..serving import CHECKPOINT, free_port, wait_until_answered

NCU = shutil.which("ncu")
START_S = 300
SETTINGS = ("talker.engine=vllm", "talker.dtype=float32", "talker.slots=4")
WINDOW_STEPS = 3

pytestmark = pytest.mark.skipif(NCU is None, reason="needs Nsight Compute")


def speak(url: str) -> None:
    answer = httpx.post(
        f"{url}/v1/audio/speech",
        json={"model": "tts-1", "input": "one two", "voice": "alloy", "max_new_frames": 12, "min_new_frames": 12},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text


@pytest.fixture
def profiled_server(tmp_path):
    """A server on the GPU whose kernels ncu records while a window is open; yields its URL and ncu's report."""
    port, report = free_port(), tmp_path / "window.csv"
    settings = [word for setting in SETTINGS for word in ("--set", f"pipeline.{setting}")]
    devices = ["--set", "pipeline.talker.devices=[cuda:0]", "--set", "pipeline.code2wav.devices=[cuda:0]"]
    window = f'{{"profiler": "cuda", "max_iterations": {WINDOW_STEPS}}}'
    process = subprocess.Popen(
        [
            *(NCU, "--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none"),
            *("--graph-profiling", "graph", "--metrics", "gpu__time_duration.sum", "--csv", "--log-file", report),
            *(sys.executable, "-m", "duotone", "serve", str(CHECKPOINT), "--port", str(port)),
            *("--profiler-config", window, *settings, *devices),
        ],
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    wait_until_answered(f"{url}/health", process, START_S)
    yield url, report, process
    print(report.read_text()[-2000:])  # what ncu itself has to say, where a test fails
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def test_nsight_records_both_stages_between_start_and_stop_and_nothing_else(profiled_server):
    url, report, process = profiled_server
    speak(url)
    assert "Kernel Name" not in report.read_text(), "a kernel was recorded before the start"
    assert httpx.post(f"{url}/start_profile", timeout=60).status_code == 200
    assert httpx.post(f"{url}/start_profile", timeout=60).status_code == 409
    speak(url)  # more steps than the window has
    assert httpx.post(f"{url}/stop_profile", timeout=60).status_code == 200
    assert httpx.post(f"{url}/stop_profile", timeout=60).status_code == 409
    speak(url)
    duotone = subprocess.run(["pgrep", "-f", f"duotone serve .*{url[-5:]}"], capture_output=True, text=True, check=True)
    subprocess.run(["kill", "-TERM", duotone.stdout.split()[-1]], check=True)
    process.wait(60)
    lines = [line for line in report.read_text().splitlines() if line.startswith('"')]
    recorded = list(csv.DictReader(lines))
    by_process = Counter(row["Process ID"] for row in recorded)
    assert len(by_process) == 2, f"kernels by process: {by_process}"
    # A window of a few steps, of which each is a handful of graphs and kernels, not all that three answers launched.
    assert all(0 < count < 200 * WINDOW_STEPS for count in by_process.values()), by_process
