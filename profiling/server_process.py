"""A server under measurement: started in a session of its own, watched through /proc, and gone for sure in the end.

All processes of the session count as the server's, its workers too, whoever their parent is by now. Linux only.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp

STOP_S = 30.0
"""How long a server may take to drain and leave before it is killed."""
KILL_S = 10.0
"""How long a killed process may take to be gone; one with a GPU takes a while."""
PROBE_INTERVAL_S = 0.1
LOG_TAIL_LINES = 15
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ServerFailed(Exception):
    """The server did not start, or died; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Process:
    """What /proc/PID/stat tells of a process."""

    pid: int
    state: str
    session: int
    cpu_s: float
    """User and system time of all its threads, to a hundredth of a second."""


def read_process(pid: int) -> Process | None:
    """None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; after its end every field is one word, the state first.
    fields = stat.rpartition(")")[2].split()
    return Process(pid, fields[0], int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def session_processes(session: int) -> list[Process]:
    """The processes of a session that have not ended."""
    found = (read_process(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in found if process and process.session == session and process.state not in "ZX"]


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    session: int

    def cpu_s(self) -> float:
        """CPU time that its processes have spent so far, those that have ended aside."""
        return sum(process.cpu_s for process in session_processes(self.session))

    async def busy_cores(self, window_s: float) -> float:
        """CPU seconds a second of all its processes over a window from now on."""
        begun_s, before_s = time.monotonic(), self.cpu_s()
        await asyncio.sleep(window_s)
        return (self.cpu_s() - before_s) / (time.monotonic() - begun_s)


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running_server(command: Sequence[str], url: str, log: Path, start_timeout_s: float) -> AsyncIterator[Server]:
    """Start a command, wait until /health of its URL is 200, and end its whole session when the block is left.

    Raises ServerFailed when it ends before that, does not answer in time, or a ClientError leaves the block. What it
    prints goes to `log`.
    """
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        await _until_healthy(process, url, log, start_timeout_s)
        yield Server(url, process.pid)
        if process.returncode is not None:
            raise ServerFailed(f"the server died (exit status {process.returncode})\n{_tail(log)}")
    except aiohttp.ClientError as failure:
        raise ServerFailed(f"the server answers no more: {failure}\n{_tail(log)}") from None
    finally:
        await _end(process)


async def _until_healthy(process: asyncio.subprocess.Process, url: str, log: Path, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession(url) as session:
            while not await _healthy(session):
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), PROBE_INTERVAL_S)
                if process.returncode is not None:
                    raise ServerFailed(f"the server ended (exit status {process.returncode})\n{_tail(log)}")
    except TimeoutError:
        raise ServerFailed(f"the server is not ready after {timeout_s:g} s\n{_tail(log)}") from None


async def _healthy(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/health") as answer:
            return answer.status == HTTPStatus.OK
    except aiohttp.ClientError:
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the server to leave, then kill what is left of its session, also when the waiting is interrupted."""
    try:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
    finally:
        _kill_session(process.pid)
    await process.wait()


@contextmanager
def cancelled_when_terminated() -> Iterator[None]:
    """SIGTERM and SIGHUP cancel the task, as SIGINT does already, so that no server is left behind."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in _ENDING_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in _ENDING_SIGNALS:
            loop.remove_signal_handler(number)


def _kill_session(session: int) -> None:
    """Blocks until all its processes are gone: this must not be interrupted. Raises ServerFailed if one stays."""
    deadline_s = time.monotonic() + KILL_S
    while left := session_processes(session):
        if time.monotonic() > deadline_s:
            raise ServerFailed(f"cannot be killed: {', '.join(str(process.pid) for process in left)}")
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.01)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
