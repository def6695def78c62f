"""A worker process: its start, its end, and the loop that is the same for both stages.

Started as `python -m duotone.stages.worker ADDRESS...`, the orchestrator's end of each worker's channel, with one line
of JSON (a Crew) on its standard input. The input stays open as long as the parent lives: when it ends, the process
exits at once, so not even a killed server leaves orphans.

Each worker has a thread of its own, the first the main thread; what breaks one ends the process.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .channel import WorkerChannel
from .checkpoint import read_checkpoint
from .engine import SHORTEST_REST_S, Engine
from .errors import ConfigurationError, DuotoneError, RequestError
from .messages import (
    Abort,
    Control,
    Exposition,
    Failed,
    Fatal,
    Ping,
    Pong,
    Profiled,
    Ready,
    Scrape,
    Shutdown,
    StageCommand,
    StartProfile,
    StopProfile,
)
from .pipeline import Crew, WorkerSpec

if TYPE_CHECKING:
    from ..profiling.profiler import Profiler

log = logging.getLogger(__name__)

SWITCH_S = 50e-6
"""How long a thread may keep the interpreter from another that asks for it: a hundredth of a step of the Talker."""


def build_engine(spec: WorkerSpec) -> Engine:
    """The engine that the spec asks for, loaded and warm. Heavy imports happen here and nowhere else in this file."""
    checkpoint = read_checkpoint(spec.checkpoint)
    if spec.code2wav is not None:
        from .code2wav.engine import Code2WavEngine

        return Code2WavEngine(checkpoint, spec.code2wav)
    assert spec.talker is not None
    if spec.talker.engine == "vllm":
        from .talker.vllm_start import start_vllm_talker

        return start_vllm_talker(checkpoint, spec.talker)
    from .talker.torch_engine import TorchTalkerEngine

    return TorchTalkerEngine(checkpoint, spec.talker)


def build_profiler(spec: WorkerSpec, engine: Engine) -> "Profiler | None":
    """The profiler that the stage's settings ask for. Raises ConfigurationError when it cannot run on this machine."""
    options = spec.options.profiler_config
    if options is None:
        return None
    from ..profiling.profiler import ProfilerError, make_profiler

    try:
        return engine.own_profiler(options) or make_profiler(options, spec.name)
    except ProfilerError as error:
        raise ConfigurationError(f"profiler_config: {error}") from None


class Loop:
    """Takes commands, waiting for them while there is no work or the engine rests; steps; sends what the step made."""

    def __init__(self, engine: Engine, profiler: "Profiler | None", channel: WorkerChannel) -> None:
        self._engine = engine
        self._profiler = profiler
        self._channel = channel

    def run(self) -> None:
        """Until Shutdown."""
        while True:
            for command in self._channel.receive(self._engine.rest_s() if self._engine.has_work() else None):
                if isinstance(command, Shutdown):
                    return
                self._obey(command)
            if self._engine.has_work() and self._engine.rest_s() < SHORTEST_REST_S:
                self._step()

    def _step(self) -> None:
        event = self._engine.step()
        if event is not None:
            self._channel.send(event)
        if self._profiler is not None:
            self._profiler.step()

    def _obey(self, command: StageCommand | Control) -> None:
        match command:
            case StartProfile() | StopProfile():
                self._channel.send(self._profile(command))
            case Ping():
                self._channel.send(Pong())
            case Scrape():
                self._channel.send(Exposition(self._engine.exposition()))
            case _:
                try:
                    self._engine.accept(command)
                except RequestError as error:
                    keys = command.keys if isinstance(command, Abort) else [command.key]
                    self._channel.send(Failed(keys, str(error)))

    def _profile(self, command: StartProfile | StopProfile) -> Profiled:
        """A failure to profile is the answer to whoever asked, and no reason to stop serving."""
        assert self._profiler is not None, "the routes exist only where a profiler is configured"
        try:
            if isinstance(command, StartProfile):
                self._profiler.start()
                return Profiled([])
            return Profiled([str(path) for path in self._profiler.stop()])
        except Exception as error:
            log.exception("the profiler failed")
            return Profiled([], f"{type(error).__name__}: {error}")


def parent_gone(addresses: list[str]) -> NoReturn:
    """Leave at once. A parent that was killed while it waited for this process has left the folder of the addresses."""
    bound = [Path(address.removeprefix("ipc://")) for address in addresses]
    with suppress(OSError):
        for path in bound:
            path.unlink()
        bound[0].parent.rmdir()
    os._exit(1)


def exit_with_parent(addresses: list[str]) -> None:
    """Leave when standard input ends, which is when the parent process is gone. Runs in a thread of its own."""

    def watch() -> None:
        # The unbuffered file descriptor: a thread inside a buffered read would hold its lock at interpreter exit.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        parent_gone(addresses)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def read_crew(addresses: list[str]) -> Crew:
    """The first line of standard input, read byte by byte so that nothing behind it is swallowed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            parent_gone(addresses)
        line += byte
    return Crew.model_validate_json(line)


def leave(channel: WorkerChannel, last_words: str) -> NoReturn:
    """End the process for a worker's failure, and say why: nothing is left to lose."""
    channel.send(Fatal(last_words))
    channel.close()
    os._exit(1)


def build(crew: Crew, channels: list[WorkerChannel]) -> "list[tuple[Engine, Profiler | None, WorkerChannel]]":
    """What each worker serves with, one after the other. Ends the process where one of them cannot have it."""
    from .device import claimed, settle

    built: list[tuple[Engine, Profiler | None, WorkerChannel]] = []
    # Code2Wav first: vLLM warns of every Triton kernel that is compiled once it has started.
    waiting = list(zip(crew.workers, channels, strict=True))
    try:
        with claimed(crew.device):
            while waiting:
                spec, channel = waiting[-1]
                engine = build_engine(spec)
                settle()
                built.insert(0, (engine, build_profiler(spec, engine), channel))
                waiting.pop()
    except DuotoneError as error:
        leave(waiting[-1][1], str(error))
    except Exception as error:  # whatever a library raises
        log.exception("the engine does not start")
        leave(waiting[-1][1], f"{type(error).__name__}: {error}")
    return built


def serve(engine: Engine, profiler: "Profiler | None", channel: WorkerChannel) -> None:
    """A worker's life once its engine is there. Whatever breaks it ends the process, and with it who shares that."""
    try:
        channel.send(Ready(engine.slots, os.getpid()))
        Loop(engine, profiler, channel).run()
        engine.close()
        channel.close()
    except (Exception, SystemExit) as error:  # the outermost loop of this thread
        log.exception("the engine broke")
        leave(channel, f"{type(error).__name__}: {error}")


def main() -> None:
    """The process: read the specification, build the engines, serve until every worker is told to stop."""
    # The terminal's Ctrl-C reaches the whole group; the server decides when a worker stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    addresses = sys.argv[1:]
    crew = read_crew(addresses)
    exit_with_parent(addresses)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {crew.name}: %(message)s")
    workers = build(crew, [WorkerChannel(address) for address in addresses])
    if len(workers) > 1:
        sys.setswitchinterval(SWITCH_S)
    others = [threading.Thread(target=serve, args=worker, name="worker") for worker in workers[1:]]
    for thread in others:
        thread.start()
    serve(*workers[0])
    for thread in others:
        thread.join()
    os._exit(0)  # there is nothing left to lose, and a GPU's graphs take the interpreter seconds to take apart


if __name__ == "__main__":
    main()
