"""Several outputs of a whole daemon that dies between their commits."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable

from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from tests.brokers import Broker
    from tests.integration.daemon.rig import Daemon, Site

#: ``Deadly`` is a table that stores, and kills its process if there is a file that says so.
_CODE = """
import os
import pathlib
import signal

import pyarrow as pa
from headrace.extensions.delta.sink import DeltaSink

DIE = pathlib.Path(__file__).with_name("die")


def places(table, batch):
    places = table.select(["partition", "offset"])
    spelt = [f"{row['partition']}:{row['offset']}".encode() for row in places.to_pylist()]
    return {"first": places, "deadly": places, "topic": pa.table({"value": spelt})}


class Deadly(DeltaSink):
    def commit(self, staged, offsets):
        if DIE.exists() and DIE.read_text() == "before":
            self._die()
        super().commit(staged, offsets)
        if DIE.exists():
            self._die()

    def _die(self):
        DIE.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.slow

RECORDS = 10


def everything(broker: Broker, topic: str) -> list[bytes]:
    """Return the values of what was committed to the topic's one partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while (message := consumer.poll(30)) is not None:
            if (error := message.error()) is None:
                found.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
        raise AssertionError(f"{topic} was not read to its end in time")
    finally:
        consumer.close()


def places(site: Site, table: str) -> list[tuple[int, int]]:
    """Return the records whose rows are in a table."""
    rows = DeltaTable(site.directory / table).to_pyarrow_table().to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def run(site: Site, document: dict[str, Any], total: int, moment: str) -> Daemon:
    """Run a daemon up to ``total`` records of each partition, or until it dies at a commit."""
    for number in (0, 1):
        values = [b"%d" % offset for offset in range(total - RECORDS, total)]
        site.broker.produce(site.partition(number), *values)
    if moment:
        (site.directory / "die").write_text(moment)
    daemon = site.daemon(document).start()
    if moment:
        assert daemon.wait() == -signal.SIGKILL, daemon.text()
        return daemon
    eventually(lambda: site.offsets() == [total, total])
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.text()
    return daemon


def test_a_daemon_that_dies_between_outputs_stores_each_record_once_in_each(site: Site) -> None:
    """Tables and a topic agree after deaths before and after the commit in the middle."""
    (site.directory / "outputs.py").write_text(_CODE, encoding="utf-8")
    topic = site.broker.create_topic(1)
    sink = {
        "type": "several",
        "outputs": {
            "first": {"type": "delta", "path": str(site.directory / "first")},
            "deadly": {
                "type": "custom",
                "factory": "outputs:Deadly",
                "guarantee": "exactly_once",
                "options": {"path": str(site.directory / "deadly")},
            },
            "topic": {"type": "kafka", "topic": topic},
        },
    }
    document = site.document(processor={"type": "arrow", "reducer": "outputs:places"}, sink=sink)
    total = 0
    for moment in ("", "before", "behind", ""):
        total += RECORDS
        daemon = run(site, document, total, moment)

    assert daemon.wait_event("output_behind")["output"] in sink["outputs"]
    each = [(number, offset) for number in (0, 1) for offset in range(total)]
    assert places(site, "first") == each
    assert places(site, "deadly") == each
    found = [tuple(map(int, value.split(b":"))) for value in everything(site.broker, topic)]
    assert sorted(found) == each
