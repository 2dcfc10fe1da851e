"""Write the dashboard for Grafana, deploy/grafana/dashboards/headrace.json.

    python scripts/dashboard.py

What it shows stands in deploy/grafana/panels.yml. The queries are tried on a real Prometheus by
the tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_GRAFANA = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
PANELS = _GRAFANA / "panels.yml"
DASHBOARD = _GRAFANA / "dashboards" / "headrace.json"

#: Where every address of the dashboard ends; it stays when the title changes.
UID = "headrace"

#: The Grafana release whose schema this follows.
SCHEMA_VERSION = 39

_PROCESS = 'job="headrace", instance=~"$instance"'
_CHANNEL = f'{_PROCESS}, channel=~"$channel"'

#: What narrows a query down to the variables at the top of the dashboard.
SELECTORS = {
    "process": _PROCESS,
    "channel": _CHANNEL,
    "topic": f'{_CHANNEL}, topic=~"$topic"',
}

#: What is marked on every curve: its name, colour, expression and text.
ANNOTATIONS = (
    (
        "Reloads",
        "blue",
        "sum by (instance, outcome) (increase(headrace_config_reloads_total{<process>}[1m])) > 0",
        "{{instance}}: configuration {{outcome}}",
    ),
    (
        "Rebalances",
        "orange",
        "sum by (channel) (increase(headrace_rebalances_total{<channel>}[1m])) > 0",
        "{{channel}}: the group was rebalanced",
    ),
)

WIDTH = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and how its series are called in the legend."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a curve over time, or a single number where ``kind`` is stat.

    ``unit`` is Grafana's. ``limits`` are the values from which a number is yellow and red.
    """

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    limits: tuple[float | None, ...] = (None, None)


def rows() -> dict[str, list[Panel]]:
    """Return the panels of each row, as panels.yml has them."""
    document = yaml.safe_load(PANELS.read_text(encoding="utf-8"))
    return {title: [_read(panel) for panel in panels] for title, panels in document.items()}


def _read(entry: dict[str, Any]) -> Panel:
    queries = entry.get("queries") or {"": entry["query"]}
    kind = entry.get("kind", "timeseries")
    return Panel(
        title=entry["title"],
        about=entry["about"],
        queries=tuple(Query(_complete(text), legend) for legend, text in queries.items()),
        kind=kind,
        unit=entry.get("unit", "short"),
        width=entry.get("width", 3 if kind == "stat" else 8),
        stacked=entry.get("stacked", False),
        limits=tuple(entry.get("limits", (None, None))),
    )


def _complete(expression: str) -> str:
    for name, selector in SELECTORS.items():
        expression = expression.replace(f"<{name}>", selector)
    return expression


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana keeps it."""
    return {
        "uid": UID,
        "title": "Headrace",
        "description": "Inbound Kafka channels: flow, lag, groups, failures.",
        "tags": ["headrace", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": [_annotation(*each) for each in ANNOTATIONS]},
        "links": [],
        "panels": _panels(),
    }


def _annotation(name: str, color: str, expression: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "datasource": _DATASOURCE,
        "expr": _complete(expression),
        "step": "60s",
        "titleFormat": name,
        "textFormat": text,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}
    return [
        {**source, "hide": 0, "multi": False, "includeAll": False, "refresh": 1},
        _variable("instance", "Daemon", 'label_values(up{job="headrace"}, instance)'),
        _variable(
            "channel",
            "Channel",
            _complete("label_values(headrace_buffer_bytes{<process>}, channel)"),
        ),
        _variable(
            "topic", "Topic", _complete("label_values(headrace_records_total{<channel>}, topic)")
        ),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def _panels() -> list[dict[str, Any]]:
    """Lay the rows out below each other, and the panels of each from left to right."""
    found: list[dict[str, Any]] = []
    top = 0
    for title, panels in rows().items():
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            height = 4 if panel.kind == "stat" else 8
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            found.append(_panel(panel, len(found) + 1, place))
            left += panel.width
        top += height
    return found


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
                "editorMode": "code",
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    for color, limit in zip(("yellow", "red"), panel.limits, strict=True):
        if limit is not None:
            steps.append({"color": color, "value": limit})
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind == "timeseries":
        stacking = "normal" if panel.stacked else "none"
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": stacking, "group": "A"},
        }
    else:
        defaults["noValue"] = "-"
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        }
    return {
        "legend": {
            "showLegend": True,
            "displayMode": "list",
            "placement": "bottom",
            "calcs": [],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def rendered() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(rendered(), encoding="utf-8")
