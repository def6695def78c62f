"""The whole server as its users run it: `duotone serve` on the small golden checkpoint, real workers, real sockets."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

CHECKPOINT = Path(__file__).parent / "golden" / "custom_voice" / "checkpoint"

SERVER_PYTHON = os.environ.get("SERVER_PYTHON", sys.executable)
"""Whose environment holds the server, where the tests run in another (`make test-clients`)."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_until_answered(url: str, process: subprocess.Popen, timeout_s: float = 60) -> None:
    """Until the URL answers 200. Fails when the process ends, or time is over."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the server ended"
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail("the server was not ready in time")


class Server:
    """A `duotone serve` process in a group of its own."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None, checkpoint: Path = CHECKPOINT) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [SERVER_PYTHON, "-m", "duotone", "serve", str(checkpoint), "--port", str(port), *flags],
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    def wait_until_ready(self, timeout_s: float = 60) -> None:
        wait_until_answered(f"{self.url}/health", self.process, timeout_s)

    def metric(self, line: str) -> float:
        """The value of the sample whose name and labels are `line`."""
        for row in httpx.get(f"{self.url}/metrics").text.splitlines():
            if row.startswith(line + " "):
                return float(row.rsplit(" ", 1)[1])
        return 0.0

    def workers(self, *names: str) -> dict[str, int]:
        """Name → process id: of the server's children in the order they were started, first the Talkers, on Linux."""
        pids = self.children("duotone.stages.worker")
        return dict(zip(names or ("talker", "code2wav"), sorted(pids), strict=True))

    def children(self, module: str) -> list[int]:
        """The server's child processes that run a module."""
        found = subprocess.run(
            ["ps", "--ppid", str(self.process.pid), "-o", "pid=,args="], capture_output=True, text=True, check=False
        )
        return [int(line.split()[0]) for line in found.stdout.splitlines() if module in line]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def kill(self, timeout_s: float = 5) -> list[int]:
        """Kill the server alone; the processes of its group that are still there after a while."""
        self.process.kill()
        self.process.wait()
        deadline_s = time.monotonic() + timeout_s
        while self.group() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return self.group()

    def group(self) -> list[int]:
        """Every process of the server's group that still runs."""
        found = subprocess.run(
            ["ps", "-g", str(self.process.pid), "-o", "pid=,stat="], capture_output=True, text=True, check=False
        )
        return [int(line.split()[0]) for line in found.stdout.splitlines() if "Z" not in line.split()[1]]
