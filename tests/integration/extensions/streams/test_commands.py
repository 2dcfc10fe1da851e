"""``headrace state`` and figures of operators, beside a topology that runs and is stopped."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT, arrived
from tests.integration.extensions.streams.test_daemon import (
    BEGIN,
    clicks,
    end_windows,
    produce,
    program,
    stop,
    topology,
)

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site


@pytest.mark.timeout(300)
def test_the_store_of_a_topology_is_looked_at_compared_and_forgotten(site: Site) -> None:
    """The one part with a store needs no name; what was purged is said before it is forgotten."""
    code = program(site)
    final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
    options: dict[str, Any] = {
        "clicks": site.topic,
        "final": final,
        "updates": updates,
        "kind": "tumbling",
    }
    document = topology(site, code, "windows", options)
    file = site.directory / "headrace.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")

    def headrace(*words: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, [*words, "-c", str(file)])
        assert done.exit_code == status, done.output
        return done.output

    daemon = site.daemon(document).start(config=file)
    sent = clicks(30, 1)
    produce(site, sent)
    arrived(site, daemon, updates, 1)
    over = len(end_windows(site, BEGIN + 10_000))
    where = {"topology": "shop", "channel": "shop.pages", "operator": "pages"}

    def figure(name: str) -> float | None:
        return daemon.metric(f"headrace_streams_{name}", **where)

    counted = len(sent) + over
    wait_for(lambda: figure("records_total") == counted, Deadline.after(SPARK_WAIT))
    assert figure("records_total") == counted
    assert figure("late_total") == 0
    closed = figure("closed_total") or 0
    arrived(site, daemon, final, int(closed))
    assert closed > 0
    wait_for(lambda: figure("rows") == over, Deadline.after(SPARK_WAIT))
    listed = [json.loads(line) for line in headrace("state", "list", "--json").splitlines()]
    rows = [each["key"] for each in listed if each["key"].startswith("pages/")]
    assert len(rows) == over == figure("rows")
    assert json.loads(headrace("state", "get", rows[0], "--json"))["key"] == rows[0]
    assert "no row /a in the partitions" in headrace("state", "get", "/a", status=1)
    (shown,) = [
        each
        for channel in json.loads(headrace("status", "--json"))["channels"]
        for each in channel["state_by_key"]["operators"]
    ]
    assert (shown["name"], shown["rows"], shown["records"]) == ("pages", over, counted)
    stop(daemon)
    assert "0 differ" in headrace("state", "verify")
    said = headrace("state", "forget", "--yes")
    assert f"{site.group}.pages.by-key is purged as it is processed" in said
    forgotten = sum(int(number) for number in re.findall(r"(\d+) keys forgotten", said))
    assert forgotten == len(listed)
