"""A worker process: its start, its end, and the loop that is the same for both stages.

Started as `python -m duotone.stages.worker ADDRESS`, the orchestrator's end of its channel, with one line of JSON (a
WorkerSpec) on its standard input. The input stays open as long as the parent lives: when it ends, the worker exits at
once, so not even a killed server leaves orphans.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .channel import WorkerChannel
from .checkpoint import read_checkpoint
from .engine import Engine
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
from .pipeline import WorkerSpec

if TYPE_CHECKING:
    from ..profiling.profiler import Profiler

log = logging.getLogger(__name__)


def build_engine(spec: WorkerSpec) -> Engine:
    """The engine that the spec asks for, loaded and warm. Heavy imports happen here and nowhere else in this file."""
    from .device import claimed

    checkpoint = read_checkpoint(spec.checkpoint)
    with claimed(spec.device):
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
        return engine.own_profiler(options) or make_profiler(options, f"{spec.stage}-{spec.replica}")
    except ProfilerError as error:
        raise ConfigurationError(f"profiler_config: {error}") from None


class Loop:
    """Takes commands, without waiting while there is work; steps; sends what the step made."""

    def __init__(self, engine: Engine, profiler: "Profiler | None", channel: WorkerChannel) -> None:
        self._engine = engine
        self._profiler = profiler
        self._channel = channel

    def run(self) -> None:
        """Until Shutdown."""
        while True:
            for command in self._channel.receive(block=not self._engine.has_work()):
                if isinstance(command, Shutdown):
                    return
                self._obey(command)
            if self._engine.has_work():
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


def exit_with_parent(address: str) -> None:
    """Leave at once when standard input ends, which is when the parent process is gone. Runs in a thread of its own.

    A parent that was killed while it waited for this worker has left the folder of the `address`.
    """

    def watch() -> None:
        # The unbuffered file descriptor: a thread inside a buffered read would hold its lock at interpreter exit.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        bound = Path(address.removeprefix("ipc://"))
        with suppress(OSError):
            bound.unlink()
            bound.parent.rmdir()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def read_spec() -> WorkerSpec:
    """The first line of standard input, read byte by byte so that nothing behind it is swallowed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            sys.exit("worker: standard input ended before its specification")
        line += byte
    return WorkerSpec.model_validate_json(line)


def main() -> None:
    """The process: read the specification, build the engine, loop, and say why if it ends otherwise."""
    # The terminal's Ctrl-C reaches the whole group; the server decides when a worker stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = read_spec()
    exit_with_parent(sys.argv[1])
    name = f"{spec.stage}-{spec.replica}"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {name}: %(message)s")
    with closing(WorkerChannel(sys.argv[1])) as channel:
        try:
            engine = build_engine(spec)
            profiler = build_profiler(spec, engine)
            channel.send(Ready(engine.slots, os.getpid()))
            Loop(engine, profiler, channel).run()
            engine.close()
            os._exit(0)  # there is nothing left to lose, and a GPU's graphs take the interpreter seconds to take apart
        except DuotoneError as error:
            channel.send(Fatal(str(error)))
            sys.exit(1)
        except Exception as error:  # the outermost loop of this process
            log.exception("the engine broke")
            channel.send(Fatal(f"{type(error).__name__}: {error}"))
            sys.exit(1)


if __name__ == "__main__":
    main()
