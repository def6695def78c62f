"""`duotone bench` and `duotone compare` as they are typed: what they pass on, print and answer with their status."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.profiling.compare import compare
from duotone.server import bench_cli
from duotone.server.cli import app

from ..profiling.http_server import Script, serving

FRAME = b"\1\0" * 1920
FAKE = (sys.executable, str(Path(__file__).parents[1] / "profiling" / "fake_duotone.py"))


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_bench_prints_a_column_for_each_number_of_streams(tmp_path):
    with serving(Script([(0.0, FRAME)])) as url:
        result = run("bench", "--url", url, "--streams", "1,3", "--frames", 1, "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in result.stdout.splitlines() if "│" in row]
    assert ["requests completed", "8", "24"] in rows
    assert ["answers of a wrong length", "0", "0"] in rows
    levels = json.loads((tmp_path / "out.json").read_text())["levels"]
    assert [level["summary"]["streams"] for level in levels] == [1, 3]


def test_bench_passes_on_what_to_ask_for(tmp_path):
    (tmp_path / "texts.txt").write_text("Eins.\n\n  Zwei. \n")
    script = Script([(0.0, FRAME)])
    with serving(script) as url:
        words = ("--texts", tmp_path / "texts.txt", "--voice", "ash", "--model", "m", "--seed", 7, "--warmup", 0)
        assert run("bench", "--url", url, "--requests", 2, *words).exit_code == 0
    asked = {"model": "m", "voice": "ash", "response_format": "pcm"}
    assert script.bodies == [{**asked, "input": "Eins.", "seed": 7}, {**asked, "input": "Zwei.", "seed": 8}]


def test_bench_ends_with_an_error_when_a_request_failed_and_says_why():
    with serving(Script([(0.0, b"[x]")], status=500)) as url:
        result = run("bench", "--url", url, "--warmup", 0)
    assert result.exit_code == 1
    assert "1 streams: 8 failed: HTTP 500" in result.stdout


def test_bench_ends_with_an_error_when_an_answer_has_another_length():
    with serving(Script([(0.0, FRAME)])) as url:
        assert run("bench", "--url", url, "--frames", 2).exit_code == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("bench", "--streams", "0"), "error: --streams 0: expected counts, such as 1,16,64"),
        (("bench", "--streams", "1,x"), "error: --streams 1,x: expected counts, such as 1,16,64"),
        (("bench", "--url", "localhost"), "error: --url localhost: expected http://host:port"),
        (("bench", "--texts", "/no/such/file"), "error: --texts /no/such/file: No such file or directory"),
        (("bench", "--texts", "/dev/null"), "error: --texts /dev/null: no text in it"),
        (("compare", "--out", "x", "--a", "x", "--b", "y=1"), "error: --a x: expected KEY=VALUE"),
        (("compare", "--out", "x", "--a", "x=1", "--b", "y"), "error: --b y: expected KEY=VALUE"),
    ],
)
def test_words_that_make_no_sense_are_refused_in_a_line(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert (result.exit_code, result.stderr.splitlines()) == (1, [line])


def test_compare_starts_both_arms_and_prints_a_table_for_each_number_of_streams(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_OMNI_EVENT_DRIVEN_ORCH", "1")
    monkeypatch.setattr(bench_cli, "run_comparison", partial(compare, program=FAKE))
    words = ("--a", "delay_s=0", "--b", "delay_s=0.2", "--b", "SIDE=b", "--set", "x=1", "--config", "profile")
    counts = ("--streams", "1,2", "--requests", 2, "--frames", 1, "--repeats", 1, "--idle", 0.1)
    result = run("compare", "some/model", "--out", tmp_path, *words, *counts)
    assert result.exit_code == 0
    assert "1 streams" in result.stdout
    assert "2 streams" in result.stdout
    written = json.loads((tmp_path / "compare.json").read_text())
    shared = "duotone serve some/model --config profile --set x=1"
    assert written["runs"][1]["command"].startswith(
        f"env -u VLLM_OMNI_EVENT_DRIVEN_ORCH SIDE=b {shared} --set delay_s=0.2 --host"
    )
    assert written["plan"]["load"]["seed"] == 0


def test_compare_ends_with_an_error_when_a_request_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_cli, "run_comparison", partial(compare, program=FAKE))
    words = ("--a", "delay_s=0", "--b", "status=500", "--requests", 1, "--frames", 1, "--repeats", 1, "--idle", 0.1)
    result = run("compare", "--out", tmp_path, *words)
    assert result.exit_code == 1
    assert "not every request was answered as asked for" in result.stderr


def test_compare_tells_why_a_server_did_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_cli, "run_comparison", partial(compare, program=FAKE))
    result = run("compare", "--out", tmp_path, "--a", "fail=1", "--b", "x=1")
    assert result.exit_code == 1
    assert "the weights are missing" in result.stderr
    assert "Traceback" not in result.output
