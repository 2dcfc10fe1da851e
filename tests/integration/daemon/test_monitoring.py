"""Alerts and dashboard on a real Prometheus that scrapes a real daemon."""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import yaml

from headrace.apps.workflow.daemon_config import WorkflowNode
from headrace.apps.workflow.messages import start_message
from headrace.apps.workflow.topics import Topics, create_topics
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.codecs import to_json
from headrace.kafka.clients import properties_of
from headrace.telemetry.metrics import Metrics
from headrace.testing.records import FakeRecord
from tests.integration.daemon.prometheus import DEPLOY, Prometheus, prometheus, tool
from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Daemon, Site

pytestmark = pytest.mark.slow

_FLOWS = """
from headrace.apps.workflow import Call, Workflows

flows = Workflows()


@flows.process
def wait(call):
    call.cancelled.wait()


flows.define("waiting", 1, Call("wait"))
"""

_TOPOLOGY = """
from headrace.streams import Field, Row, Topology, tumbling, count, window_start


class Order(Row):
    id: Field[int]


class Payment(Row):
    paid: Field[int]


class Settled(Row):
    id: Field[int | None]
    paid: Field[int | None]


class Minute(Row):
    begin: Field[int]
    n: Field[int]


def settled(orders, payments, output):
    app = Topology()
    made = app.stream(orders, Order).join(
        app.stream(payments, Payment), Settled, name="settled", kind="outer", within="1s",
        id=Order.id, paid=Payment.paid,
    )
    by_minute = made.group_by(Settled.id, name="minutes").window(tumbling("1m"))
    by_minute.agg(Minute, begin=window_start, n=count()).final().to(output)
    return app
"""

#: A metric with what narrows it down.
_SELECTOR = re.compile(r"\b(?:headrace_[a-z_]+|process_[a-z_]+|up)\b(?:\{[^}]*\})?")


def promtool(*arguments: str | Path, text: bytes = b"") -> None:
    """Run promtool; what it complains of fails the test."""
    command = [tool("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_prometheus_accepts_the_scrape_configuration_and_the_alerts() -> None:
    """The scrape configuration and the alerts are valid."""
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    promtool("check", "rules", DEPLOY / "prometheus" / "alerts.yml")


def test_each_alert_fires_when_it_has_to_and_only_then() -> None:
    """The cases of alerts_test.yml hold."""
    promtool("test", "rules", DEPLOY / "prometheus" / "alerts_test.yml")


def instances(site: Site) -> dict[str, Any]:
    """Return the channels of workflows, with an instance whose call is not answered."""
    (site.directory / "waiting.py").write_text(_FLOWS, encoding="utf-8")
    topics, brokers = Topics(f"{site.group}.flow"), site.broker.address
    create_topics(properties_of(brokers), topics, partitions=1, assignments=1)
    message = to_json(start_message("i", "waiting@1", {}))
    record = FakeRecord(key_=b"i", value_=message, timestamp_=round(time.time() * 1000))
    site.broker.produce(TopicPartition(topics.events, 0), record)
    node = WorkflowNode("waiting:flows", brokers, topics, site.directory, site.zookeeper_hosts)
    found: dict[str, Any] = node.configuration()["channels"]
    return found


def topologies(site: Site) -> dict[str, Any]:
    """Return a topology with a join and windows, which has counted a record."""
    (site.directory / "settled.py").write_text(_TOPOLOGY, encoding="utf-8")
    orders, payments, output = (site.broker.create_topic(1) for _ in range(3))
    record = FakeRecord(key_=b"1", value_=b'{"id": 1}', timestamp_=round(time.time() * 1000))
    site.broker.produce(TopicPartition(orders, 0), record)
    options = {"orders": orders, "payments": payments, "output": output}
    group = f"{site.group}.shop"
    return {"shop": {"code": "settled:settled", "group": group, "options": options}}


def busy(
    site: Site,
    besides: dict[str, Any] | None = None,
    topologies: dict[str, Any] | None = None,
) -> Daemon:
    """Return a daemon that has processed records, and skipped one that failed."""
    quick = {
        "retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "10ms"},
        "rejects": {"failing": "skip"},
    }
    for number in (0, 1):
        site.broker.produce(site.partition(number), b"a", b"poison", b"c")
    document = site.document("refuse_poison", **quick)
    document["channels"] |= besides or {}
    document["topologies"] = topologies or {}
    daemon = site.daemon(document).start()
    eventually(lambda: site.offsets() == [3, 3])
    if besides is not None:
        eventually(lambda: daemon.metric("headrace_keyed_rows", channel="workflow") == 1)
    if topologies is not None:
        options = topologies["shop"]["options"]
        part = f"shop.{min(options['orders'], options['payments'])}"
        where = {"topology": "shop", "channel": part, "operator": "settled"}
        eventually(lambda: daemon.metric("headrace_streams_rows", **where) == 1)
    return daemon


def test_the_metrics_are_as_prometheus_wants_them(site: Site) -> None:
    """Promtool finds nothing wrong with what a daemon serves, and all of it is declared."""
    port = busy(site).wait_event("metrics_served")["port"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read()
    promtool("check", "metrics", text=text)
    served = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE))
    ours = {name for name in served if not name.startswith("process_")}
    assert ours == {spec.name for spec in Metrics().specs}


def test_the_lag_is_the_age_of_a_waiting_record(site: Site) -> None:
    """While a record hangs in the function its age is shown and rises; without one it is 0."""
    daemon = site.run("hang")
    where = {"channel": "main", "topic": site.topic, "partition": "0"}
    eventually(lambda: daemon.metric("headrace_lag_seconds", **where) == 0)
    site.broker.produce(site.partition(0), b"a")
    eventually(lambda: (daemon.metric("headrace_lag_seconds", **where) or 0) > 0)
    first = daemon.metric("headrace_lag_seconds", **where)
    assert first is not None
    assert first < 60
    eventually(lambda: (daemon.metric("headrace_lag_seconds", **where) or 0) > first)
    assert daemon.metric("headrace_sink_freshness_seconds", channel="main") is None


def test_each_query_has_an_answer(site: Site, tmp_path: Path) -> None:
    """Every expression of the dashboard has a series, and so has every part of every alert."""
    daemon = busy(site, instances(site), topologies(site))
    port = daemon.wait_event("metrics_served")["port"]
    with prometheus(tmp_path, f"127.0.0.1:{port}") as server:
        # a rate takes two scrapes, and the deriv of an alert two minutes, which nobody waits for
        eventually(lambda: server.query('count_over_time(up{job="headrace"}[1m]) >= 4'))
        # what compares, as the time to catch up, is silent while all is well
        asked = [query for query in queries() if " > 0" not in query]
        silent = [query for query in asked if not server.query(query)]
        assert silent == []
        eventually(lambda: all(rule["health"] == "ok" for rule in server.rules()))
        assert len(server.rules()) == len(alerts())
        assert downs(server) == ["inactive"]
        daemon.kill()
        eventually(lambda: downs(server) == ["pending"])


def downs(server: Prometheus) -> list[str]:
    """Return the state of the alert that says that a daemon is down."""
    return [rule["state"] for rule in server.rules() if rule["name"] == "HeadraceDown"]


def alerts() -> list[dict[str, Any]]:
    """Return all alert rules."""
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Return what has to have a series while all is well."""
    dashboard = json.loads(
        (DEPLOY / "grafana" / "dashboards" / "headrace.json").read_text(encoding="utf-8")
    )
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    offered = [
        _SELECTOR.search(variable["query"]["query"])
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    parts = [part for rule in alerts() for part in _SELECTOR.findall(rule["expr"])]
    found = [*shown, *(match[0] for match in offered if match is not None), *parts]
    return [_complete(query) for query in found]


def _complete(query: str) -> str:
    """Put in what Grafana does: everything chosen, and four times the scrape interval."""
    chosen = re.sub(r"\$(instance|channel|topic)\b", ".*", query)
    return chosen.replace("$__rate_interval", "10s")
