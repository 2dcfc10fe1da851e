"""``headrace streams compare`` beside topologies that run and are stopped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT
from tests.integration.extensions.streams.test_daemon import (
    BEGIN,
    clicks,
    produce,
    program,
    stop,
    topology,
)

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from tests.integration.daemon.rig import Daemon, Site


def two_topologies(site: Site) -> dict[str, Any]:
    """Return a configuration of the same code twice, the second time in another group."""
    code, made = program(site), dict[str, Any]()
    for name, group in (("shop", site.group), ("shop-v2", f"{site.group}-v2")):
        final, updates = site.broker.create_topic(1), site.broker.create_topic(1)
        options = {"clicks": site.topic, "final": final, "updates": updates, "kind": "tumbling"}
        document = topology(site, code, "windows", options)
        made[name] = {**document["topologies"]["shop"], "group": group}
    return {**document, "topologies": made}


def wait_for_records(daemon: Daemon, topologies: dict[str, int]) -> None:
    """Wait until the store of each topology counted so many records since the start."""

    def counted(name: str) -> float | None:
        where = {"topology": name, "channel": f"{name}.pages", "operator": "pages"}
        return daemon.metric("headrace_streams_records_total", **where)

    found = wait_for(
        lambda: all(counted(name) == number for name, number in topologies.items()),
        Deadline.after(SPARK_WAIT),
    )
    assert found, daemon.text()


def compared(file: Path, *more: str, expect: int) -> Result:
    """Run the command; its exit code is the one that is expected."""
    arguments = ["streams", "compare", "shop", "shop-v2", "pages", *more, "-c", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == expect, result.output
    return result


def read_of(found: dict[str, Any], name: str) -> int:
    """Return how far a topology read the topics of the store, all partitions together."""
    return sum(each["offset"] or 0 for each in found["offsets"] if each["topology"] == name)


@pytest.mark.timeout(300)
def test_the_store_of_a_topology_that_is_behind_differs_until_it_has_read_the_same(
    site: Site,
) -> None:
    """The rows are of the offsets that are said, also while a topology runs."""
    document = two_topologies(site)
    file = site.directory / "headrace.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")
    refused = compared(file, expect=2)
    assert "does not exist; start the channel once" in refused.stderr
    sent = clicks(60, 1)
    produce(site, sent)
    both = site.daemon(document).start(config=file)
    wait_for_records(both, {"shop": len(sent), "shop-v2": len(sent)})
    running = json.loads(compared(file, "--json", expect=0).stdout)
    assert running["same"] > 0
    assert running["differences"] == []
    stop(both)
    alone = {**document, "topologies": {"shop": document["topologies"]["shop"]}}
    more = clicks(40, 2, BEGIN + 60_000)
    produce(site, more)
    first = site.daemon(alone).start()
    wait_for_records(first, {"shop": len(more)})
    found = json.loads(compared(file, "--json", expect=1).stdout)
    assert found["same"] + found["different"] + found["only"]["shop-v2"] == running["same"]
    assert found["only"]["shop"] > 0
    assert read_of(found, "shop") >= read_of(running, "shop") + len(more)
    assert read_of(found, "shop-v2") == read_of(running, "shop-v2")
    assert all(each["values"]["shop"] != each["values"]["shop-v2"] for each in found["differences"])
    text = compared(file, expect=1)
    assert f"{found['only']['shop']} only in shop, " in text.stdout
    assert '"n"' in text.stdout
    stop(first)
    last = site.daemon(document).start(config=file)
    wait_for_records(last, {"shop-v2": len(more)})
    assert f"{found['same'] + found['different'] + found['only']['shop']} rows are the same" in (
        compared(file, expect=0).stdout
    )
    stop(last)
