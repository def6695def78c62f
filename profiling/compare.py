"""Two configurations of the server side by side: each is started in turn, loaded alike, measured and stopped.

The arms take turns in the order A B B A A B …, so that what drifts with time meets both. A difference counts only
where it is larger than what repeats of one arm differ by.
"""

import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from .bench import Level, Load, Target, ignore, machine, run_level, write_results
from .figures import FIGURES, Figure, as_text
from .measures import Record, Summary
from .scrape import scraped
from .server_process import Server, cancelled_when_terminated, free_port, running_server

ArmName = Literal["A", "B"]
Verdict = Literal["A better", "B better", "no difference", "one repeat"]

PROGRAM = (sys.executable, "-m", "duotone")

_ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_IN_FLIGHT = ("duotone_requests_running", "duotone_requests_waiting")


@dataclass(frozen=True)
class Arm:
    """What one configuration has of its own: arguments of `serve`, and variables of its environment."""

    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """`NAME=VALUE` each."""


@dataclass(frozen=True)
class Plan:
    """A whole comparison."""

    a: Arm
    b: Arm
    load: Load
    streams: tuple[int, ...]
    repeats: int = 3
    arguments: tuple[str, ...] = ()
    """Of `serve`, in both arms."""
    without: tuple[str, ...] = ()
    """Variables that neither arm may inherit from the caller's environment, since they would override both."""
    idle_s: float = 5.0
    """How long the server is watched without load."""
    start_timeout_s: float = 600.0

    def order(self) -> list[ArmName]:
        """Which arm runs when."""
        turns: tuple[tuple[ArmName, ArmName], ...] = (("A", "B"), ("B", "A"))
        return [name for repeat in range(self.repeats) for name in turns[repeat % 2]]

    def command(self, name: ArmName, port: int, program: Sequence[str] = PROGRAM) -> list[str]:
        """What starts an arm's server, through env(1): only the settings read our own environment."""
        arm = self.a if name == "A" else self.b
        environment = [word for variable in self.without for word in ("-u", variable)] + [*arm.environment]
        arguments = (*self.arguments, *arm.arguments, "--host", "127.0.0.1", "--port", str(port))
        return ["env", *environment, *program, "serve", *arguments]

    @property
    def requests(self) -> int:
        """Measured requests of the whole comparison."""
        return 2 * self.repeats * sum(self.load.requests_at(streams) for streams in self.streams)


@dataclass(frozen=True)
class Measured:
    """One number of streams in one run."""

    summary: Summary
    server_cores: float
    """CPU seconds a second of all the server's processes, warm-up included."""


@dataclass(frozen=True)
class Run:
    """One start of one arm's server."""

    arm: ArmName
    command: str
    levels: list[Measured]
    idle_cores: float
    """CPU seconds a second of all the server's processes after the load."""
    left_in_flight: int
    """Requests that the server still counted as waiting or running after that."""


@dataclass(frozen=True)
class Spread:
    """The values of a figure over the repeats of one arm."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """A figure in both arms; None where an arm has no value for it."""

    name: str
    digits: int
    a: Spread | None
    b: Spread | None
    ratio: float | None
    """B over A, of the medians."""
    verdict: Verdict | None


@dataclass(frozen=True)
class Comparison:
    """All lines of one number of streams."""

    streams: int
    lines: list[Line]


@dataclass(frozen=True)
class Outcome:
    """What is written down of a comparison, the records aside."""

    plan: Plan
    commit: str | None
    machine: str
    runs: list[Run]
    comparisons: list[Comparison]

    @property
    def sound(self) -> bool:
        """Every request was answered with what it asked for, and none stayed behind."""
        levels = [level.summary for run in self.runs for level in run.levels]
        failed = any(level.failures or level.warmup_failures or level.inexact for level in levels)
        return not failed and not any(run.left_in_flight for run in self.runs)


def parse_arm(items: Sequence[str]) -> Arm:
    """`NAME=VALUE` in capitals is a variable, `config=PROFILE` a profile, any other `key=value` a setting.

    Raises ValueError where there is no `=`.
    """
    arguments: list[str] = []
    environment: list[str] = []
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise ValueError(f"{item}: expected KEY=VALUE")
        if _ENVIRONMENT_NAME.fullmatch(name):
            environment.append(item)
        else:
            arguments += ["--config", value] if name == "config" else ["--set", item]
    return Arm(tuple(arguments), tuple(environment))


def spread(values: Sequence[float]) -> Spread | None:
    """None where there are no values."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def verdict(a: Spread, b: Spread, repeats: int, higher_is_better: bool) -> Verdict:
    """Which arm is better, if the medians differ by more than the repeats of either arm do."""
    difference = b.median - a.median
    if abs(difference) <= max(a.high - a.low, b.high - b.low):
        return "no difference"
    if repeats == 1:
        return "one repeat"
    return "B better" if (difference > 0) == higher_is_better else "A better"


def line(name: str, digits: int, higher_is_better: bool, a: Sequence[float | None], b: Sequence[float | None]) -> Line:
    """A figure from its values in the runs of each arm; a run in which it has none does not count."""
    values_a, values_b = ([value for value in values if value is not None] for values in (a, b))
    spread_a, spread_b = spread(values_a), spread(values_b)
    if spread_a is None or spread_b is None:
        return Line(name, digits, spread_a, spread_b, None, None)
    ratio = spread_b.median / spread_a.median if spread_a.median else None
    repeats = min(len(values_a), len(values_b))
    return Line(name, digits, spread_a, spread_b, ratio, verdict(spread_a, spread_b, repeats, higher_is_better))


def compare_runs(runs: Sequence[Run], level: int) -> list[Line]:
    """The lines of one number of streams, which is the `level`-th of each run."""
    a, b = ([run for run in runs if run.arm == arm] for arm in ("A", "B"))

    def row(name: str, digits: int, higher_is_better: bool, read: Callable[[Run], float | None]) -> Line:
        return line(name, digits, higher_is_better, list(map(read, a)), list(map(read, b)))

    def of(figure: Figure) -> Line:
        return row(
            *(figure.name, figure.digits, figure.higher_is_better), lambda run: figure.read(run.levels[level].summary)
        )

    return [
        *map(of, FIGURES),
        row("server's CPU under load, cores", 2, False, lambda run: run.levels[level].server_cores),
        row("server's CPU idle, cores", 4, False, lambda run: run.idle_cores),
    ]


async def compare(
    plan: Plan,
    out: Path,
    says: Callable[[str], None],
    ended: Callable[[Record], None] = ignore,
    program: Sequence[str] = PROGRAM,
) -> Outcome:
    """Run a whole comparison; `says` is told what happens now, `ended` of each measured request.

    Leaves in the folder `out` compare.json and, for each run, records and the server's log, over what is there.
    Raises ServerFailed, OSError; no server is left running, whatever ends it.
    """
    runs: list[Run] = []
    order = plan.order()
    with cancelled_when_terminated():
        for number, arm in enumerate(order, start=1):
            says(f"run {number} of {len(order)}, {arm}: starting the server")
            port, stem = free_port(), out / f"run-{number:02d}-{arm}"
            command, url, log = plan.command(arm, port, program), f"http://127.0.0.1:{port}", stem.with_suffix(".log")
            async with running_server(command, url, log, plan.start_timeout_s) as server:
                runs.append(await _run(plan, arm, server, stem, says, ended))
    comparisons = [Comparison(streams, compare_runs(runs, level)) for level, streams in enumerate(plan.streams)]
    outcome = Outcome(plan, _commit(), machine(), runs, comparisons)
    (out / "compare.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
    return outcome


async def _run(
    plan: Plan,
    arm: ArmName,
    server: Server,
    stem: Path,
    says: Callable[[str], None],
    ended: Callable[[Record], None],
) -> Run:
    target = Target(server.url)
    measured: list[Measured] = []
    levels: list[Level] = []
    for streams in plan.streams:
        says(f"{stem.name}: {streams} streams")
        begun_s, before_s = time.monotonic(), server.cpu_s()
        levels.append(await run_level(target, plan.load, streams, ended))
        server_cores = (server.cpu_s() - before_s) / (time.monotonic() - begun_s)
        measured.append(Measured(levels[-1].summary, server_cores))
    says(f"{stem.name}: idle")
    idle_cores = await server.busy_cores(plan.idle_s)
    write_results(stem.with_suffix(".json"), target, plan.load, levels)
    # As one would type it: where Python lies on this machine, and which port was free, is of no use to a reader.
    command = shlex.join(plan.command(arm, 8000, ("duotone",)))
    async with target.session() as session:
        in_flight = sum(sample.value for sample in await scraped(session) if sample.name in _IN_FLIGHT)
    return Run(arm, command, measured, idle_cores, int(in_flight))


def _commit() -> str | None:
    """What git calls the checkout that this file is in; None where it is in none."""
    command = ("git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty")
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return described.stdout.strip() or None


def comparison_table(comparison: Comparison) -> Table:
    """Medians with the lowest and highest value of each arm's repeats, the ratio B/A, and what follows."""
    table = Table(title=f"{comparison.streams} streams")
    table.add_column("median (lowest … highest)")
    for heading in ("A", "B", "B/A"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in comparison.lines:
        ratio = "–" if row.ratio is None else f"{row.ratio:.3f}"
        table.add_row(row.name, _cell(row.a, row.digits), _cell(row.b, row.digits), ratio, row.verdict or "–")
    return table


def _cell(values: Spread | None, digits: int) -> str:
    if values is None:
        return "–"
    median, low, high = (as_text(value, digits) for value in (values.median, values.low, values.high))
    return f"{median} ({low} … {high})"
