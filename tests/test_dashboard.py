"""The Grafana dashboard asks for what the server's exposition holds, in queries that Prometheus reads."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duotone.profiling.metrics import Metrics
from duotone.profiling.monitor import Monitor

DASHBOARD = json.loads((Path(__file__).parents[1] / "configs" / "grafana_dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """Every sample that an operator's Prometheus reads → the names of its labels."""
    metrics, monitor = Metrics("lark"), Monitor()
    monitor.queued("talker-0", time.monotonic())
    metrics.show(monitor)
    metrics.replica("talker-0")
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def grouped_by(expression: str) -> set[str]:
    return {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_that_is_asked_for_exists_with_its_labels(expression, exposed):
    series = re.findall(r"(duotone_\w+)\{([^}]*)\}", expression)
    assert len(series) == expression.count("duotone_") > 0
    for name, selectors in series:
        assert name in exposed
        selected = set(re.findall(r"(\w+)=~?\"", selectors))
        assert "model" in selected
        assert selected | grouped_by(expression) <= exposed[name], name


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_legend_shows_only_labels_that_its_query_keeps(panel, exposed):
    for target in panel["targets"]:
        expression = target["expr"]
        kept = grouped_by(expression) if "sum" in expression else exposed[expression.partition("{")[0]]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept - {"le"}


def test_the_variable_is_filled_from_a_series_that_exists(exposed):
    model = next(variable for variable in DASHBOARD["templating"]["list"] if variable["name"] == "model")
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", model["query"]["query"]).groups()
    assert label in exposed[name]


def test_panels_fill_rows_without_overlap_under_numbers_of_their_own():
    cells = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + row)
        for panel in DASHBOARD["panels"]
        for column in range(panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {column for column, _ in cells} == set(range(24))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool is installed (Debian: apt-get install prometheus)")
def test_prometheus_reads_every_query(tmp_path):
    filled = [expression.replace("$__rate_interval", "1m").replace("$model", "lark") for expression in EXPRESSIONS]
    rules = [{"record": f"query:{index}", "expr": expression} for index, expression in enumerate(filled)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(EXPRESSIONS)} rules found" in done.stdout
