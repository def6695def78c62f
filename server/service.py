"""From settings to a running service: what `duotone serve` and `duotone say` do once their arguments are read."""

import asyncio
import base64
import errno
import logging
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import uvicorn
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..profiling.metrics import Metrics
from ..profiling.monitor import Monitor
from ..stages.checkpoint import locate, read_checkpoint
from ..stages.cloning.cloner import Cloner
from ..stages.errors import ConfigurationError, DuotoneError, RequestError
from ..stages.orchestrator import Orchestrator
from ..stages.pipeline import PIPELINES
from ..stages.talker.prompt import build_plan
from ..stages.talker.tokenizer import Tokenizer
from ..stages.types import SAMPLE_BYTES, SAMPLE_RATE
from .app import create_app
from .catalog import Catalog, Model, served_name
from .cloning import Cloning
from .config import Settings
from .http_protocol import protocols
from .narration import Narrator, Planner
from .protocol import SpeechRequest

log = logging.getLogger(__name__)

_LAST_WRITES_S = 5
"""How long a stopping server waits for clients to take the ends of their answers."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class Service:
    """One served model, its pipeline not started yet."""

    catalog: Catalog
    planner: Planner
    pipeline: Orchestrator
    metrics: Metrics
    monitor: Monitor
    cloner: Cloner | None
    """Where the model speaks with the voices of recordings."""


def assemble(settings: Settings) -> Service:
    """Find (or download) the checkpoint and check all that can be checked before a worker starts.

    Raises CheckpointError, ConfigurationError.
    """
    checkpoint = read_checkpoint(locate(settings.model))
    catalog = Catalog(settings, Model.of(checkpoint))
    tokenizer = Tokenizer(checkpoint)
    metrics = Metrics(catalog.name)
    monitor = Monitor(keep_all=settings.monitor_file is not None)
    definition = PIPELINES[checkpoint.model_type]
    pipeline = Orchestrator(definition, checkpoint.directory, settings.pipeline, metrics, monitor)
    cloner = Cloner(checkpoint.directory, settings.cloning) if checkpoint.clones else None
    return Service(catalog, partial(build_plan, checkpoint, tokenizer), pipeline, metrics, monitor, cloner)


class Server(uvicorn.Server):
    """Uvicorn, which lets answers in flight end before it closes what they are sent through, live sessions too."""

    def __init__(self, config: uvicorn.Config, pipeline: Orchestrator, drain_s: float) -> None:
        super().__init__(config)
        self._pipeline = pipeline
        self._drain_s = drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, unless a second Ctrl-C is in a hurry, then shut down."""
        log.info("stopping: answers in flight have %g s to end", self._drain_s)
        for server in self.servers:
            server.close()
        draining = asyncio.ensure_future(self._pipeline.drain(self._drain_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait((draining,), timeout=_LOOK_S)
        draining.cancel()
        if self.server_state.tasks:
            # Those that have just failed say so before their connections are closed.
            await asyncio.wait(self.server_state.tasks, timeout=_LOOK_S)
        await super().shutdown(sockets)


def serve(settings: Settings) -> None:
    """Serve until a signal ends it. Raises DuotoneError when the pipeline cannot start or the monitor be written."""
    if settings.monitor_file is not None:
        with _writing(f"--monitor {settings.monitor_file}"), settings.monitor_file.open("a"):
            pass  # Better now than when all has been measured.
    check_address(settings.http.host, settings.http.port)
    service = assemble(settings)
    failures: list[DuotoneError] = []

    def start_failed(error: DuotoneError) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(
        settings, service.catalog, service.planner, service.pipeline, service.metrics, start_failed, service.cloner
    )
    http, ws = protocols(settings.http.send_timeout_s)
    server = Server(
        uvicorn.Config(
            app,
            host=settings.http.host,
            port=settings.http.port,
            lifespan="on",
            log_config=None,
            server_header=False,
            http=http,
            ws=ws,
            # A session ends in better order than its protocol, so it is to see messages that are a little too large.
            ws_max_size=2 * settings.max_body_bytes(recordings=service.cloner is not None),
            ws_per_message_deflate=False,  # Samples hardly shrink, and compressed formats not at all.
            timeout_graceful_shutdown=_LAST_WRITES_S,
        ),
        service.pipeline,
        settings.http.drain_s,
    )
    # uvicorn drains at SIGTERM and then raises it once more; it was obeyed, so the process ends well and after our end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.run()
    finally:
        if settings.monitor_file is not None:
            with _writing(f"--monitor {settings.monitor_file}"):
                service.monitor.write(settings.monitor_file, time.monotonic())
    if failures:
        raise failures[0]


def check_address(host: str, port: int) -> None:
    """Raises ConfigurationError for an address that cannot be listened on."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"http.host: {host}: {error}") from None
    refusals = [refusal for address in addresses if (refusal := _refusal(*address))]
    # Of several addresses of a name, a family that the system does not have is left out.
    if refusals and (len(refusals) == len(addresses) or refusals[0].errno != errno.EADDRNOTAVAIL):
        field = "http.port" if refusals[0].errno in (errno.EADDRINUSE, errno.EACCES) else "http.host"
        raise ConfigurationError(f"{field}: cannot listen on {host}:{port}: {refusals[0].strerror}")


def _refusal(family: int, kind: int, protocol: int, _: str, address: tuple[Any, ...]) -> OSError | None:
    """What the system has against listening on an address."""
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Raises ConfigurationError for what the system, or libsndfile, says."""
    try:
        yield
    except (OSError, soundfile.LibsndfileError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigurationError(f"{what}: cannot be written: {why}") from None


def request_to_say(settings: Settings, fields: Mapping[str, object], ref_audio: Path | None) -> SpeechRequest:
    """A request from command line arguments. Raises RequestError as the route would answer it, ConfigurationError."""
    asked: dict[str, object] = {"model": served_name(settings), **fields}
    if ref_audio is not None:
        try:
            encoded = base64.b64encode(ref_audio.read_bytes()).decode()
        except OSError as error:
            raise ConfigurationError(f"{ref_audio}: cannot be read: {error.strerror}") from None
        asked |= {"ref_audio": f"data:audio/wav;base64,{encoded}", "x_vector_only": fields["ref_text"] is None}
    try:
        return SpeechRequest.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None


def _target(out: Path) -> tuple[Path, str]:
    """What a path leads to, which need not be there yet, and the format that its name tells.

    Raises ConfigurationError for what cannot be written.
    """
    name = out.suffix.removeprefix(".").upper()
    if name not in soundfile.available_formats() or not soundfile.default_subtype(name):
        raise ConfigurationError(f"{out}: cannot write this format; .wav and .flac are always there")
    if not out.parent.is_dir():
        raise ConfigurationError(f"{out}: there is no folder {out.parent}")
    target = out.resolve()
    with _writing(str(out)), target.open("ab") if target.exists() else tempfile.TemporaryFile(dir=target.parent):
        pass  # Better now than when all has been said.
    return target, name


def _write(out: Path, audio: npt.NDArray[np.int16], format_name: str) -> None:
    """Raises ConfigurationError, and leaves nothing that is not whole."""
    was_there = out.exists()
    with _writing(str(out)):
        try:
            soundfile.write(out, audio, SAMPLE_RATE, format=format_name)
        except (OSError, soundfile.LibsndfileError):
            if not was_there:
                out.unlink(missing_ok=True)
            raise


async def say(settings: Settings, request: SpeechRequest, out: Path) -> float:
    """Speak a request into a file whose format its name tells; returns seconds of audio. Raises DuotoneError."""
    target, format_name = _target(out)
    service = assemble(settings)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting the pipeline")
        try:
            await service.pipeline.start()
            cloning = Cloning(settings, service.catalog, service.cloner)
            narrator = Narrator(settings, service.catalog, cloning, service.planner, service.pipeline)
            chunks = []
            with await narrator.begin("say", request) as narration:
                async for samples in narration:
                    chunks.append(samples)
                    spoken_s = sum(map(len, chunks)) / SAMPLE_BYTES / SAMPLE_RATE
                    progress.update(task, description=f"speaking: {spoken_s:.1f} s")
        finally:
            await service.pipeline.stop(drain_s=0)
            if service.cloner is not None:
                await service.cloner.stop()
    audio = np.frombuffer(b"".join(chunks), np.int16)
    _write(target, audio, format_name)
    return len(audio) / SAMPLE_RATE
