"""The worked examples with state by key, in a daemon with Spark."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.testing.records import FakeRecord
from tests.integration.daemon.conftest import broker, site
from tests.integration.daemon.rig import spark_section
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

__all__ = ["broker", "site"]

EXAMPLES = Path(__file__).parents[3] / "examples"

#: Seconds for a daemon with Spark, and for the quiet time after which timers fire.
WAIT = 200.0

pytestmark = pytest.mark.slow


def of_keys(rows: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Return each key's rows in their order."""
    found: dict[str, list[Any]] = {}
    for key, row in rows:
        found.setdefault(key, []).append(row)
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "key"), [("checkout", "order"), ("sessions", "plane")])
def test_an_example_makes_its_rows_on_spark(site: Site, name: str, key: str) -> None:
    """The records, sent without a key, come out as the rows in its folder, each once by its key."""
    folder = EXAMPLES / name
    channel = yaml.safe_load((folder / "headrace.yaml").read_text())["channels"][name]
    source, output, letters = (site.broker.create_topic(count) for count in (1, 4, 1))
    channel |= {"topics": [source], "group": site.group}
    channel["sink"]["topic"] = output
    if "topic" in channel.get("rejects", {}):
        channel["rejects"]["topic"] = letters
    document = site.document()
    document |= {
        "channels": {name: channel},
        "python_path": [str(folder)],
        "spark": spark_section(2),
    }
    daemon = site.daemon(document).start()
    daemon.wait_event("controller_started", WAIT)
    records = (folder / "records.jsonl").read_bytes().splitlines()
    partition = site.partition(0)._replace(topic=source)
    site.broker.produce(partition, *(FakeRecord(value_=value) for value in records))
    expected = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]

    def arrived() -> bool:
        return len(committed_records(site.broker.address, output)) >= len(expected)

    assert wait_for(arrived, Deadline.after(WAIT)), daemon.text()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    found = committed_records(site.broker.address, output)
    rows = [((each.key() or b"").decode(), json.loads(each.value() or b"")) for each in found]
    assert of_keys(rows) == of_keys([(row[key], row) for row in expected])
    keyless = [value for value in records if name == "checkout" and b'"order"' not in value]
    assert [each.value() for each in committed_records(site.broker.address, letters)] == keyless
