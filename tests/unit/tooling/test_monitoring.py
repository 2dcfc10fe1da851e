"""The alerts and the dashboard, without a Prometheus: names, labels, texts and links."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "headrace.json").read_text(encoding="utf-8"))

#: Metrics that others make: Prometheus itself, and its client for Python.
OTHERS = {
    "up",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}

#: Labels that Prometheus adds at each scrape.
ADDED = {"job", "instance"}

DECLARED = {spec.name: spec for spec in Metrics().specs}

_METRIC = re.compile(r"\b((?:headrace|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")


def _read(path: Path) -> Any:
    """Return a file's YAML, read by libyaml: in Python the tests of the alerts take a second."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


@cache
def alerts() -> list[dict[str, Any]]:
    """Return all alert rules."""
    document = _read(PROMETHEUS / "alerts.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@cache
def expressions() -> dict[str, str]:
    """Return every expression of the alerts and of the dashboard, by where it stands."""
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for panel in panels():
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found[f"${variable['name']}"] = variable["query"]["query"]
    return found


@pytest.mark.parametrize("place", expressions())
def test_each_metric_is_one_that_is_declared(place: str) -> None:
    """Names, labels and values of labels are those of headrace.telemetry.metrics."""
    expression = expressions()[place]
    metrics = _METRIC.findall(expression)
    # what Prometheus itself says of our alerts has none of ours
    assert metrics or 'ALERTS{alertname=~"Headrace.*"' in expression
    for name, matchers in metrics:
        spec = DECLARED.get(name) or DECLARED.get(re.sub("_(bucket|sum|count)$", "", name))
        assert spec is not None or name in OTHERS, name
        labels = set(spec.labels) if spec is not None else set()
        for label, wanted in _MATCHER.findall(matchers):
            assert label in labels | ADDED, f"{name} has no label {label}"
            known = {} if spec is None else spec.values
            if label in known and not wanted.startswith("$"):
                assert set(wanted.split("|")) <= set(known[label])


def test_each_alert_says_how_bad_it_is_what_it_means_and_what_to_do() -> None:
    """Each has a severity, a summary, and a section of its own in the runbooks."""
    runbooks = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\w+)$", runbooks, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = f"{project['urls']['Homepage']}/blob/main"
    rules = alerts()
    assert sections == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
        anchor = rule["alert"].lower()
        assert rule["annotations"]["runbook_url"] == f"{files}/docs/runbooks.md#{anchor}"


def test_each_alert_is_tested_to_fire_and_not_to_fire() -> None:
    """alerts_test.yml expects each alert at least once, and somewhere less than all series."""
    document = _read(PROMETHEUS / "alerts_test.yml")
    fires: set[str] = set()
    silent: set[str] = set()
    for case in document["tests"]:
        for test in case["alert_rule_test"]:
            expected = test["exp_alerts"]
            (fires if expected else silent).add(test["alertname"])
            series = [s for s in case["input_series"] if _metric(s) in _metrics(test["alertname"])]
            if len(expected) < len(series):
                silent.add(test["alertname"])
    names = {rule["alert"] for rule in alerts()}
    assert fires == names
    assert silent == names


def _metric(series: dict[str, str]) -> str:
    return series["series"].partition("{")[0]


def _metrics(alert: str) -> set[str]:
    return {name for name, _ in _METRIC.findall(expressions()[alert])}


def test_the_dashboard_is_what_its_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """deploy/grafana/dashboards/headrace.json follows from panels.yml."""
    path = ROOT / "scripts" / "dashboard.py"
    spec = importlib.util.spec_from_file_location("dashboard_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)
    spec.loader.exec_module(script)
    assert script.DASHBOARD.read_text(encoding="utf-8") == script.rendered(), "run: " + str(path)


def test_the_dashboard_s_panels_have_numbers_and_places_of_their_own() -> None:
    """No number comes twice, no panel lies on another or sticks out, each has a description."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: Counter[tuple[int, int]] = Counter()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
        taken.update(
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        )
    assert set(taken.values()) == {1}
    assert all(panel["description"] for panel in panels())


def test_the_dashboard_is_provisioned_with_the_source_it_asks_for() -> None:
    """The uid is stable, and queries use the source of the dashboard's variable."""
    assert DASHBOARD["uid"] == "headrace"
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "instance", "channel", "topic"}
    assert variables["datasource"]["query"] == "prometheus"
    for panel in panels():
        assert {t["datasource"]["uid"] for t in panel["targets"]} == {"${datasource}"}
    sources = _read(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]


def test_the_dashboard_steps_as_prometheus_scrapes() -> None:
    """$__rate_interval follows from the scrape interval, which stands in two files."""
    config = _read(PROMETHEUS / "prometheus.yml")
    sources = _read(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")
    interval = sources["datasources"][0]["jsonData"]["timeInterval"]
    assert interval == config["global"]["scrape_interval"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["headrace"]
