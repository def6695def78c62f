"""The A/B harness: exact comparisons of given figures, and whole runs over a fake server that is really started."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from duotone.profiling.bench import Load
from duotone.profiling.compare import Arm, Plan, Spread, compare, comparison_table, line, parse_arm, spread, verdict
from duotone.profiling.server_process import (
    Server,
    ServerFailed,
    free_port,
    read_process,
    running_server,
    session_processes,
)

FAKE = (sys.executable, str(Path(__file__).with_name("fake_duotone.py")))


def plan(a=Arm(), b=Arm(), **changes):  # noqa: B008  (frozen)
    load = changes.pop("load", Load(requests=4, warmup_rounds=1, frames=2, seed=0))
    return Plan(a, b, **{"load": load, "streams": (2,), "repeats": 1, "idle_s": 0.2, "start_timeout_s": 30, **changes})


def settings(*assignments):
    return parse_arm(assignments)


def told(log):
    """What a fake server wrote about itself."""
    return json.loads(next(line for line in log.read_text().splitlines() if line.startswith("{")))


def runs(pid):
    """Whether a process runs; one that has ended may wait for its parent to take note of it."""
    process = read_process(pid)
    return process is not None and process.state != "Z"


def nothing_left(out):
    logs = list(out.glob("*.log"))
    assert logs
    return not any(runs(pid) for log in logs for pid in told(log)["pids"])


def test_the_arms_take_turns_and_the_first_of_a_pair_alternates():
    assert "".join(plan(repeats=3).order()) == "ABBAAB"
    assert "".join(plan(repeats=4).order()) == "ABBAABBA"


def test_capitals_are_variables_config_is_a_profile_all_else_are_settings():
    arm = parse_arm(["pipeline.orchestration=polling", "VLLM_OMNI_EVENT_DRIVEN_ORCH=0", "config=one_gpu", "a.b=x=y"])
    assert arm.arguments == ("--set", "pipeline.orchestration=polling", "--config", "one_gpu", "--set", "a.b=x=y")
    assert arm.environment == ("VLLM_OMNI_EVENT_DRIVEN_ORCH=0",)


@pytest.mark.parametrize("item", ["polling", "=polling", ""])
def test_an_arm_of_other_words_is_refused(item):
    with pytest.raises(ValueError, match="expected KEY=VALUE"):
        parse_arm([item])


def test_a_command_holds_what_both_arms_share_then_what_the_arm_has_of_its_own():
    shared = {"arguments": ("model", "--set", "x=1"), "without": ("ORCH",)}
    two = plan(Arm(), Arm(("--set", "x=2"), ("ORCH=0",)), **shared)
    where = ["--host", "127.0.0.1", "--port", "81"]
    assert two.command("A", 81, ("duotone",)) == [
        "env",
        "-u",
        "ORCH",
        "duotone",
        "serve",
        "model",
        "--set",
        "x=1",
        *where,
    ]
    expected = ["env", "-u", "ORCH", "ORCH=0", "duotone", "serve", "model", "--set", "x=1", "--set", "x=2", *where]
    assert two.command("B", 81, ("duotone",)) == expected


def test_the_spread_is_the_median_between_the_extremes():
    assert spread([3.0, 1.0, 10.0]) == Spread(median=3.0, low=1.0, high=10.0)
    assert spread([]) is None


@pytest.mark.parametrize(
    ("a", "b", "higher_is_better", "expected"),
    [
        ((10, 9, 11), (13, 12, 14), True, "B better"),
        ((10, 9, 11), (13, 12, 14), False, "A better"),
        ((13, 12, 14), (10, 9, 11), True, "A better"),
        ((10, 9, 11), (12, 11, 13), True, "no difference"),  # as large as the spread, not larger
        ((10, 10, 10), (13, 9, 14), True, "no difference"),  # the wider spread of the two counts
        ((10, 10, 10), (10, 10, 10), True, "no difference"),
        ((10, 10, 10), (10.1, 10.1, 10.1), True, "B better"),
    ],
)
def test_a_difference_counts_where_it_is_larger_than_the_spread(a, b, higher_is_better, expected):
    assert verdict(Spread(*a), Spread(*b), 3, higher_is_better) == expected


def test_a_single_repeat_has_no_spread_to_judge_by():
    assert verdict(Spread(1, 1, 1), Spread(2, 2, 2), 1, True) == "one repeat"
    assert verdict(Spread(1, 1, 1), Spread(1, 1, 1), 1, True) == "no difference"


def test_a_line_has_the_ratio_of_the_medians():
    row = line("x", 1, True, [10.0, 11.0, 12.0], [22.0, 22.5, 21.0])
    assert (row.a.median, row.b.median, row.ratio, row.verdict) == (11.0, 22.0, 2.0, "B better")


def test_a_line_without_a_value_or_over_zero_has_no_ratio():
    assert line("x", 1, True, [None, None], [1.0, 2.0]).ratio is None
    assert line("x", 1, True, [None, None], [1.0, 2.0]).verdict is None
    assert line("x", 1, True, [0.0, 0.0], [1.0, 1.0]).ratio is None
    assert line("x", 1, True, [0.0, 0.0], [1.0, 1.0]).verdict == "B better"
    assert line("x", 1, True, [None, 4.0], [4.0, 4.0]).a == Spread(4.0, 4.0, 4.0)


async def test_a_whole_comparison_finds_the_faster_arm_and_leaves_results_but_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERRIDES_ALL", "1")
    ended = []
    two = plan(
        settings("delay_s=0.01", "SIDE=left"),
        settings("delay_s=0.25", "SIDE=right"),
        repeats=2,
        streams=(1, 3),
        arguments=("--set", "x=1"),
        without=("OVERRIDES_ALL",),
    )
    said = []
    outcome = await compare(two, tmp_path, said.append, ended.append, FAKE)

    assert [run.arm for run in outcome.runs] == ["A", "B", "B", "A"]
    assert outcome.sound
    assert len(ended) == two.requests == 2 * 2 * (4 + 4)
    for comparison, streams in zip(outcome.comparisons, (1, 3), strict=True):
        lines = {row.name: row for row in comparison.lines}
        assert comparison.streams == streams
        assert lines["first audio p50, ms"].verdict == "A better"
        assert lines["first audio p50, ms"].b.low >= 250
        assert lines["requests completed"].a == lines["requests completed"].b == Spread(4, 4, 4)
        assert lines["answers of a wrong length"].b == Spread(0, 0, 0)
    sides = [told(tmp_path / f"run-{name}.log") for name in ("01-A", "02-B", "03-B", "04-A")]
    assert [side["side"] for side in sides] == ["left", "right", "right", "left"]
    assert {side["inherited"] for side in sides} == {None}
    assert sides[0]["words"][:5] == ["serve", "--set", "x=1", "--set", "delay_s=0.01"]
    assert nothing_left(tmp_path)

    written = json.loads((tmp_path / "compare.json").read_text())
    assert [run["arm"] for run in written["runs"]] == ["A", "B", "B", "A"]
    assert written["runs"][0]["command"].startswith("env -u OVERRIDES_ALL SIDE=left duotone serve --set x=1")
    levels = json.loads((tmp_path / "run-02-B.json").read_text())["levels"]
    assert [len(level["records"]) for level in levels] == [4, 4]


async def test_both_arms_get_the_same_requests(tmp_path):
    outcome = await compare(plan(), tmp_path, print, program=FAKE)
    assert outcome.plan.load.seed == 0
    assert {run.levels[0].summary.requests for run in outcome.runs} == {4}


async def test_a_failed_request_makes_the_outcome_unsound(tmp_path):
    outcome = await compare(plan(b=settings("status=500")), tmp_path, print, program=FAKE)
    assert outcome.runs[1].levels[0].summary.failures == {"HTTP 500": 4}
    assert not outcome.sound
    lines = {row.name: row for row in outcome.comparisons[0].lines}
    assert lines["first audio p50, ms"].b is None


async def test_a_request_that_stays_behind_makes_the_outcome_unsound(tmp_path):
    outcome = await compare(plan(b=settings("leave=3")), tmp_path, print, program=FAKE)
    assert [run.left_in_flight for run in outcome.runs] == [0, 3]
    assert not outcome.sound


async def test_idle_time_is_that_of_the_servers_own_processes(tmp_path):
    outcome = await compare(plan(b=settings("burn=1"), idle_s=1.0), tmp_path, print, program=FAKE)
    calm, busy = (run.idle_cores for run in outcome.runs)
    assert calm < 0.1
    assert 0.2 < busy < 1.2


async def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(ServerFailed, match=r"(?s)exit status 1.*the weights are missing"):
        await compare(plan(b=settings("fail=1")), tmp_path, print, program=FAKE)


async def test_a_server_that_never_gets_ready_is_an_error_and_killed(tmp_path):
    with pytest.raises(ServerFailed, match="not ready after 3 s"):
        await compare(plan(settings("deaf=1"), start_timeout_s=3), tmp_path, print, program=FAKE)
    assert nothing_left(tmp_path)


async def test_a_terminated_comparison_leaves_no_server(tmp_path):
    def terminate(text):
        if "idle" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(asyncio.CancelledError):
        await compare(plan(idle_s=60), tmp_path, terminate, program=FAKE)
    assert nothing_left(tmp_path)


async def test_a_server_that_dies_under_load_is_an_error(tmp_path):
    def kill(record):
        os.kill(told(tmp_path / "run-01-A.log")["pids"][0], signal.SIGKILL)

    with pytest.raises(ServerFailed, match=r"answers no more|died"):
        await compare(plan(load=Load(requests=1, warmup_rounds=0, frames=1)), tmp_path, print, kill, FAKE)
    assert nothing_left(tmp_path)


async def test_a_failure_within_the_block_is_the_servers_and_shows_its_log(tmp_path):
    port = free_port()
    command, url = plan().command("A", port, FAKE), f"http://127.0.0.1:{port}"
    with pytest.raises(ServerFailed, match=r"(?s)answers no more: why\n.*Uvicorn running"):
        async with running_server(command, url, tmp_path / "a.log", 30):
            raise aiohttp.ClientError("why")
    assert nothing_left(tmp_path)


def test_a_session_is_all_its_processes_whoever_their_parent_is():
    # The shell ends at once; its child lives on with another parent.
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 60 >&- & echo $!"], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    orphan = int(leader.communicate()[0])
    try:
        assert [process.pid for process in session_processes(leader.pid)] == [orphan]
    finally:
        os.kill(orphan, signal.SIGKILL)


async def test_cpu_time_of_a_session_is_counted():
    # A name with a parenthesis and a blank, which /proc does not escape.
    program = "open('/proc/self/comm', 'w').write('a) b')\nwhile True: pass"
    burning = await asyncio.create_subprocess_exec(sys.executable, "-c", program, start_new_session=True)
    try:
        assert 0.2 < await Server("", burning.pid).busy_cores(1.0) < 1.1
    finally:
        burning.kill()
        await burning.wait()


async def test_the_table_shows_medians_with_their_extremes(tmp_path):
    outcome = await compare(plan(), tmp_path, print, program=FAKE)
    table = comparison_table(outcome.comparisons[0])
    columns = [list(column.cells) for column in table.columns]
    at = columns[0].index("requests completed")
    assert [column[at] for column in columns[1:]] == ["4 (4 … 4)", "4 (4 … 4)", "1.000", "no difference"]
