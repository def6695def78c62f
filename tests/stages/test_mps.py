"""NVIDIA's Multi-Process Service, with a stand-in for its control program that writes down what it is told."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duotone.stages.errors import ConfigurationError
from duotone.stages.fleet import Fleet
from duotone.stages.mps import CONTROL, start_service
from duotone.stages.pipeline import Code2WavOptions, PipelineOptions, TalkerOptions

from .fake_stage import FakeStages

STAND_IN = """#!{python}
import json, os, sys
said = [] if "-d" in sys.argv else sys.stdin.read().split()
names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES")
with open({log!r}, "a") as log:
    print(json.dumps([sys.argv[1:] + said, [os.environ.get(name) for name in names]]), file=log)
print({complaint!r}, file=sys.stderr)
sys.exit({status})
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """`control(complaint)` installs the stand-in, one that refuses to start where it complains; returns its log."""

    def install(complaint: str = "") -> Path:
        log, program = tmp_path / "told", tmp_path / CONTROL
        program.write_text(
            STAND_IN.format(python=sys.executable, log=str(log), complaint=complaint, status=int(bool(complaint)))
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        return log

    return install


def told(log: Path) -> list[list[list[str]]]:
    """The words and the environment of each call so far."""
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_the_daemon_starts_in_a_folder_of_its_own_and_sees_every_gpu(control):
    log = control()
    service = await start_service()
    folder = service.environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert told(log) == [[["-d"], [folder, folder, None]]]
    service.keeper.send_signal(signal.SIGTERM)  # as what ends a whole process group does
    await service.stop()
    assert told(log)[1:] == [[["quit", "-t", "10"], [folder, folder, None]]]
    assert not os.path.exists(folder)  # noqa: ASYNC240


async def test_workers_are_its_clients_and_leave_before_it(control):
    log = control()
    shared = ["cuda:0"]
    options = PipelineOptions(mps=True, talker=TalkerOptions(devices=shared), code2wav=Code2WavOptions(devices=shared))
    stages = FakeStages()
    fleet = Fleet(Path("checkpoint"), options, stages.launch)
    await fleet.start()
    assert fleet._environment["CUDA_MPS_PIPE_DIRECTORY"] == told(log)[0][1][0]
    replicas = fleet.replicas()
    assert [words for words, _ in told(log)] == [["-d"]]
    await fleet.stop()
    assert all(not replica.alive for replica in replicas)
    assert [words[0] for words, _ in told(log)] == ["-d", "quit"]


async def test_a_machine_without_it_is_told_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match=f"pipeline.mps: {CONTROL}, .* is not on the PATH"):
        await start_service()


async def test_a_daemon_that_does_not_start_says_why(control):
    control("An instance of this daemon is already running")
    with pytest.raises(ConfigurationError, match=r"pipeline\.mps: .* An instance of this daemon is already running"):
        await start_service()


def test_a_killed_server_leaves_no_daemon(control):
    log = control()
    code = (
        "import asyncio; from duotone.stages.mps import start_service\n"
        "async def main():\n    service = await start_service()\n    print('up', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        server.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 10
    while len(told(log)) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert [words[0] for words, _ in told(log)] == ["-d", "quit"]
