"""A worker process: the engine protocol and the loop that is the same for both stages.

Started as `python -m duotone.stages.worker` with one line of JSON (a WorkerSpec) on its standard input. The input stays
open as long as the parent lives: when it ends, the worker exits at once, so not even a killed server leaves orphans.
"""

import logging
import os
import signal
import sys
import threading
from typing import Protocol

from .channel import WorkerChannel
from .checkpoint import read_checkpoint
from .errors import DuotoneError, RequestError
from .messages import Abort, Command, Event, Failed, Fatal, Ready, Shutdown
from .pipeline import WorkerSpec

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What a stage's engine offers to the worker loop. Called from the worker's main thread alone."""

    slots: int
    """How many requests it holds at once; the orchestrator sends no more."""

    def accept(self, command: Command) -> None:
        """Take a command of this stage, computing nothing. Raises RequestError for a request it cannot serve."""
        ...

    def has_work(self) -> bool:
        """Whether `step` would compute something."""
        ...

    def step(self) -> Event | None:
        """Do one batch of work and return what it made, None if there is nothing to say."""
        ...

    def close(self) -> None:
        """Give the device back. Called once, at the end of the loop."""
        ...


def build_engine(spec: WorkerSpec) -> Engine:
    """The engine that the spec asks for, loaded and warm. Heavy imports happen here and nowhere else in this file."""
    checkpoint = read_checkpoint(spec.checkpoint)
    if spec.code2wav is not None:
        from .code2wav.engine import Code2WavEngine

        return Code2WavEngine(checkpoint, spec.code2wav)
    assert spec.talker is not None
    if spec.talker.engine == "vllm":
        from .talker.vllm_engine import VllmTalkerEngine

        return VllmTalkerEngine(checkpoint, spec.talker)
    from .talker.torch_engine import TorchTalkerEngine

    return TorchTalkerEngine(checkpoint, spec.talker)


def run_loop(engine: Engine, channel: WorkerChannel) -> None:
    """Take commands, without waiting while there is work; step; send what the step made. Returns on Shutdown."""
    while True:
        for command in channel.receive(block=not engine.has_work()):
            if isinstance(command, Shutdown):
                return
            try:
                engine.accept(command)
            except RequestError as error:
                keys = command.keys if isinstance(command, Abort) else [command.key]
                channel.send(Failed(keys, str(error)))
        if engine.has_work():
            event = engine.step()
            if event is not None:
                channel.send(event)


def exit_with_parent() -> None:
    """Leave at once when standard input ends, which is when the parent process is gone. Runs in a thread of its own."""

    def watch() -> None:
        # The unbuffered file descriptor: a thread inside a buffered read would hold its lock at interpreter exit.
        while os.read(sys.stdin.fileno(), 4096):
            pass
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
    exit_with_parent()
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {spec.stage}-{spec.replica}: %(message)s")
    with WorkerChannel(spec.address) as channel:
        try:
            engine = build_engine(spec)
            channel.send(Ready(engine.slots, os.getpid()))
            run_loop(engine, channel)
            engine.close()
        except DuotoneError as error:
            channel.send(Fatal(str(error)))
            sys.exit(1)
        except Exception as error:  # the outermost loop of this process
            log.exception("the engine broke")
            channel.send(Fatal(f"{type(error).__name__}: {error}"))
            sys.exit(1)


if __name__ == "__main__":
    main()
