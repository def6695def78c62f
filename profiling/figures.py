"""The lines of a benchmark's tables: which figures of a summary are shown and compared, and in which unit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich.table import Table
from rich.text import Text

from .measures import Distribution, Summary
from .scrape import StageLoad

BUSY_CLIENT_CORES = 0.7
"""A load generator that keeps more of a core busy than this may measure itself."""


@dataclass(frozen=True)
class Figure:
    """One number of a summary, in the unit that its name gives."""

    name: str
    digits: int
    higher_is_better: bool
    read: Callable[[Summary], float | None]


def as_text(value: float | None, digits: int) -> str:
    """A value as a table's cell."""
    return "–" if value is None else f"{value:,.{digits}f}"


def _figures(
    name: str, digits: int, of: Callable[[Summary], Distribution | None], parts: str, scale: float = 1
) -> list[Figure]:
    """A figure for each part of a distribution in which less is better; its name takes the place of `{}`."""

    def reader(part: str) -> Callable[[Summary], float | None]:
        read = attrgetter(part)
        return lambda summary: scale * read(values) if (values := of(summary)) else None

    return [Figure(name.format(part), digits, False, reader(part)) for part in parts.split()]


FIGURES = (
    Figure("requests completed", 0, True, lambda summary: summary.completed),
    Figure("requests failed", 0, False, lambda summary: summary.requests - summary.completed),
    Figure("answers of a wrong length", 0, False, lambda summary: summary.inexact),
    Figure("wall time, s", 1, False, lambda summary: summary.wall_s),
    Figure("requests a second", 2, True, lambda summary: summary.requests_per_s),
    Figure("audio seconds a second", 1, True, lambda summary: summary.audio_s_per_s),
    *_figures("first audio {}, ms", 1, lambda summary: summary.first_audio_s, "p50 p90 p99 mean", scale=1e3),
    *_figures("end to end {}, s", 3, lambda summary: summary.end_to_end_s, "mean p50 p99"),
    *_figures("gap between chunks {}, ms", 1, lambda summary: summary.gap_s, "p50 p99 max", scale=1e3),
    *_figures("real-time factor {}", 3, lambda summary: summary.real_time_factor, "mean p99"),
    Figure("listeners run dry", 0, False, lambda summary: summary.dry_listeners),
    Figure("underrun in all, s", 3, False, lambda summary: summary.underrun_s),
    Figure("continuity, %", 1, True, lambda summary: summary.continuity and 100 * summary.continuity),
    Figure("client's CPU, cores", 2, False, lambda summary: summary.client_cores),
)

STAGE_FIGURES: tuple[tuple[str, int, Callable[[StageLoad], float | None]], ...] = (
    ("busy, %", 1, lambda load: 100 * load.busy_share),
    ("step, ms", 2, lambda load: load.step_ms),
    ("requests a step", 1, lambda load: load.batch),
)
"""Name, digits and value of what is shown of each of the server's workers."""


def summary_table(summaries: Sequence[Summary], stages: Sequence[Sequence[StageLoad]]) -> Table:
    """A column for each number of streams, a line for each figure; then the server's workers, then what went wrong."""
    table = Table(title="Speech over HTTP", caption=Text("\n".join(_remarks(summaries))), caption_justify="left")
    table.add_column("streams")
    for summary in summaries:
        table.add_column(str(summary.streams), justify="right")
    for figure in FIGURES:
        table.add_row(figure.name, *(as_text(figure.read(summary), figure.digits) for summary in summaries))
    columns = [{load.replica: load for load in column} for column in stages]
    for replica in dict.fromkeys(replica for column in columns for replica in column):
        for name, digits, read in STAGE_FIGURES:
            values = (read(column[replica]) if replica in column else None for column in columns)
            table.add_row(f"{replica} {name}", *(as_text(value, digits) for value in values))
    return table


def _remarks(summaries: Sequence[Summary]) -> list[str]:
    lines = []
    for summary in summaries:
        at = f"{summary.streams} streams:"
        lines += [f"{at} {count} failed: {why}" for why, count in summary.failures.items()]
        lines += [f"{at} {count} failed while warming up: {why}" for why, count in summary.warmup_failures.items()]
        if summary.client_cores > BUSY_CLIENT_CORES:
            lines.append(f"{at} the client kept {summary.client_cores:.2f} cores busy and may have measured itself")
    return lines
