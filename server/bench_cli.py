"""The commands that measure: `duotone bench` loads a running server, `duotone compare` two configurations in turn."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..profiling.bench import TEXTS, Level, Load, Target, run_level, write_results
from ..profiling.compare import Arm, Outcome, Plan, comparison_table, parse_arm
from ..profiling.compare import compare as run_comparison
from ..profiling.figures import summary_table
from ..profiling.server_process import ServerFailed
from ..stages.errors import ConfigurationError, DuotoneError
from .config import ORCHESTRATION_VARIABLE
from .terminal import EXIT_ERROR, told

NO_TERMINAL_COLUMNS = 140

bench_app = typer.Typer()

Streams = Annotated[str, typer.Option(metavar="N[,N…]", help="Concurrent streams; several are measured in turn.")]
Requests = Annotated[int | None, typer.Option(min=1, help="Measured requests; else 8 for each stream.")]
Warmup = Annotated[int, typer.Option(min=0, help="Requests of each stream before, not measured.")]
Frames = Annotated[int | None, typer.Option(min=1, help="Ask for answers of exactly so many frames of 80 ms.")]
Texts = Annotated[Path | None, typer.Option(metavar="FILE", help="What to say, a text on each line.")]
Voice = Annotated[str, typer.Option(help="The voice to ask for.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds by which an answer must have ended.")]
ArmWords = Annotated[
    list[str],
    typer.Option(metavar="KEY=VALUE", help="A setting; in capitals an environment variable; `config=` a profile."),
]


@bench_app.command()
def bench(
    url: Annotated[str, typer.Option(help="Any server with OpenAI's speech route.")] = "http://127.0.0.1:8000",
    streams: Streams = "1",
    requests: Requests = None,
    warmup: Warmup = 1,
    frames: Frames = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the first request; each next one has the next.")] = None,
    texts: Texts = None,
    voice: Voice = "alloy",
    model: Annotated[str, typer.Option(help="The model to ask for.")] = "tts-1",
    timeout: Timeout = 120.0,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all records and figures here.")
    ] = None,
) -> None:
    """Load a running server with concurrent streams and print what its listeners get."""
    with told(DuotoneError, OSError):
        load = Load(requests, warmup, _read_texts(texts), frames, seed, model, voice, timeout)
        with _named("--url"):
            target = Target(url, api_key)
        levels = asyncio.run(_bench(target, load, _counts(streams)))
        summaries = [level.summary for level in levels]
        _print(summary_table(summaries, [level.stages for level in levels]))
        if json_file is not None:
            write_results(json_file, target, load, levels)
    if any(summary.failures or summary.warmup_failures or summary.inexact for summary in summaries):
        raise typer.Exit(EXIT_ERROR)


async def _bench(target: Target, load: Load, counts: tuple[int, ...]) -> list[Level]:
    with _progress() as progress:
        return [await _bench_level(target, load, streams, progress) for streams in counts]


async def _bench_level(target: Target, load: Load, streams: int, progress: Progress) -> Level:
    task = progress.add_task(f"{streams} streams", total=load.requests_at(streams))
    return await run_level(target, load, streams, lambda record: progress.advance(task))


@bench_app.command()
def compare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where raw results and the servers' logs go.")],
    a: ArmWords,
    b: ArmWords,
    model: Annotated[str | None, typer.Argument(help="As for `serve`, in both arms.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A profile, in both arms.")] = None,
    assignments: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting, in both arms.")] = [],  # noqa: B006  (typer's way to write an option that may be absent)
    repeats: Annotated[int, typer.Option(min=1, help="Starts of each arm.")] = 3,
    streams: Streams = "1",
    requests: Requests = None,
    warmup: Warmup = 2,
    frames: Frames = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first request, in both arms alike.")] = 0,
    texts: Texts = None,
    voice: Voice = "alloy",
    timeout: Timeout = 120.0,
    idle: Annotated[float, typer.Option(min=0.1, help="Seconds for which a server is watched without load.")] = 5.0,
) -> None:
    """Start two configurations of the server in turn, load them alike, and say which differences are real."""
    common = [model] if model is not None else []
    common += ["--config", config] if config is not None else []
    common += [word for assignment in assignments for word in ("--set", assignment)]
    with told(DuotoneError, ServerFailed, OSError):
        plan = Plan(
            _arm("--a", a),
            _arm("--b", b),
            load=Load(requests, warmup, _read_texts(texts), frames, seed, voice=voice, timeout_s=timeout),
            streams=_counts(streams),
            repeats=repeats,
            arguments=tuple(common),
            without=(ORCHESTRATION_VARIABLE,),
            idle_s=idle,
        )
        out.mkdir(parents=True, exist_ok=True)
        outcome = asyncio.run(_compare(plan, out))
        for comparison in outcome.comparisons:
            _print(comparison_table(comparison))
        if not outcome.sound:
            raise DuotoneError(f"not every request was answered as asked for, or some were left in flight: see {out}")


async def _compare(plan: Plan, out: Path) -> Outcome:
    with _progress() as progress:
        task = progress.add_task("requests", total=plan.requests)
        return await run_comparison(plan, out, progress.console.print, lambda record: progress.advance(task))


def _progress() -> Progress:
    """On standard error, and seldom drawn: it runs on the load generator's own time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=2)


def _print(table: Table) -> None:
    """As wide as the terminal; where there is none, as wide as it takes."""
    console = Console()
    if not console.is_terminal:
        console.width = NO_TERMINAL_COLUMNS
    console.print(table)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Raises ConfigurationError that names the option for words that cannot be read."""
    try:
        yield
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from None


def _arm(option: str, words: list[str]) -> Arm:
    with _named(option):
        return parse_arm(words)


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if min(counts) < 1:
        raise ConfigurationError(f"--streams {text}: expected counts, such as 1,16,64")
    return counts


def _read_texts(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return TEXTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"--texts {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"--texts {path}: not UTF-8") from None
    texts = tuple(line.strip() for line in lines if line.strip())
    if not texts:
        raise ConfigurationError(f"--texts {path}: no text in it")
    return texts
