"""NVIDIA's Multi-Process Service: kernels of the workers that share a GPU run side by side, not in turns.

The service's daemon outlives whoever started it. So a keeper, which is this module run as a program, starts it and ends
it when its standard input ends: not even a killed server leaves a daemon behind.
"""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigurationError

CONTROL = "nvidia-cuda-mps-control"
"""Comes with NVIDIA's driver."""
QUIT_S = 10
"""How long clients may take to leave once the daemon is told to quit."""
_READY = "ready"


@dataclass(frozen=True)
class MultiProcessService:
    """A running daemon of our own, apart from others on the machine."""

    folder: "tempfile.TemporaryDirectory[str]"
    keeper: asyncio.subprocess.Process

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a process a client of this daemon."""
        return _variables(Path(self.folder.name))

    async def stop(self) -> None:
        """End the daemon. Its clients must have left."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        await self.keeper.wait()
        self.folder.cleanup()


async def start_service() -> MultiProcessService:
    """Start a daemon. Raises ConfigurationError where it cannot run."""
    if shutil.which(CONTROL) is None:
        raise ConfigurationError(f"pipeline.mps: {CONTROL}, which comes with NVIDIA's driver, is not on the PATH")
    folder = tempfile.TemporaryDirectory(prefix="duotone-mps-")
    pipe = asyncio.subprocess.PIPE
    keeper = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, folder.name, stdin=pipe, stdout=pipe)
    assert keeper.stdout is not None
    said = (await keeper.stdout.readline()).decode().strip()
    service = MultiProcessService(folder, keeper)
    if said != _READY:
        await service.stop()
        raise ConfigurationError(f"pipeline.mps: {CONTROL} does not start: {said}")
    return service


def _variables(folder: Path) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}


def main() -> None:
    """The keeper: `python -m duotone.stages.mps FOLDER`."""
    # What reaches the whole group, such as the terminal's Ctrl-C, is the server's to follow: with it the daemon goes.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    # Were GPUs hidden from the daemon, its clients would count those that are left; they choose theirs themselves.
    variables = _variables(Path(sys.argv[1])).items()
    control = ["env", "-u", "CUDA_VISIBLE_DEVICES", *(f"{name}={value}" for name, value in variables), CONTROL]
    started = subprocess.run([*control, "-d"], capture_output=True, text=True, check=False)
    if started.returncode:
        print(" ".join((started.stdout + started.stderr).split()) or f"exit status {started.returncode}", flush=True)
        sys.exit(1)
    print(_READY, flush=True)
    sys.stdin.buffer.read()
    subprocess.run(control, input=f"quit -t {QUIT_S}\n", capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
