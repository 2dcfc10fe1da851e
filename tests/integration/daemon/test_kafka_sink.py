"""Whole daemons with a Kafka sink: one dies in a transaction, another takes its partitions over."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integration.daemon.rig import eventually
from tests.kafka_sinks import committed_records, records_as

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site

#: Where the file ``hold`` names a moment of its transactions, the process that has ``HOLD`` in its
#: environment stands still there, and says so with a file.
_CODE = """
import os
import pathlib
import time

import pyarrow as pa
from headrace.kafka import transactional_producer

FOLDER = pathlib.Path(__file__).parent
HOLD = FOLDER / "hold"


def spelt(table, batch):
    rows = table.select(["partition", "offset"]).to_pylist()
    return pa.table({"value": [f"{row['partition']}:{row['offset']}".encode() for row in rows]})


def stand_still_at(moment):
    if HOLD.exists() and HOLD.read_text() == moment:
        FOLDER.joinpath("held").touch()
        time.sleep(600)


class Holding(transactional_producer.Producer):
    def send_offsets_to_transaction(self, *arguments):
        stand_still_at("produced")
        super().send_offsets_to_transaction(*arguments)
        stand_still_at("offsets_sent")

    def commit_transaction(self, *arguments):
        super().commit_transaction(*arguments)
        stand_still_at("committed")


if "HOLD" in os.environ:
    transactional_producer.Producer = Holding
"""

RECORDS = 10


class Pair:
    """Two members of a group with a partition each, whose results go to a topic of the test's."""

    def __init__(self, site: Site) -> None:
        (site.directory / "spelling.py").write_text(_CODE, encoding="utf-8")
        self.site = site
        self.topic = site.broker.create_topic(1)
        self.total = 0
        self.doomed = self._member("one", {"HOLD": "1"})
        self.other = self._member("two", {})

    def _member(self, name: str, environment: dict[str, str]) -> Daemon:
        document = self.site.document(
            processor={"type": "arrow", "reducer": "spelling:spelt"},
            sink={"type": "kafka", "topic": self.topic},
        )
        document["zookeeper"]["session_timeout"] = "4s"
        own = {"instance_id": name, "state_dir": str(self.site.directory / name)}
        daemon = self.site.daemon(document | own)
        daemon.environment |= environment
        return daemon.start()

    def share(self) -> None:
        """Wait until both have a partition."""

        def owned(daemon: Daemon) -> list[int]:
            about = {"channel": "main", "topic": self.site.topic}
            epochs = [
                daemon.metric("headrace_owner_epoch", partition=str(number), **about)
                for number in (0, 1)
            ]
            return [number for number, epoch in enumerate(epochs) if epoch is not None]

        eventually(lambda: len(owned(self.doomed)) == len(owned(self.other)) == 1)

    def produce(self) -> None:
        """Give both partitions more records."""
        for number in (0, 1):
            self.site.broker.produce(self.site.partition(number), *[b"record"] * RECORDS)
        self.total += RECORDS

    def done(self) -> None:
        """Wait until all of them are behind the group."""
        eventually(lambda: self.site.offsets() == [self.total, self.total])

    def shown(self, isolation: str) -> int:
        """Return how many results a reader of this isolation is shown."""
        return len(records_as(self.site.broker.address, self.topic, isolation))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["produced", "offsets_sent", "committed"])
def test_a_member_that_dies_in_a_transaction_leaves_each_result_once(
    site: Site, moment: str
) -> None:
    """Readers of what is committed see one result of each record, even of one produced twice."""
    pair = Pair(site)
    pair.share()
    pair.produce()
    pair.done()

    (site.directory / "hold").write_text(moment, encoding="utf-8")
    pair.produce()
    eventually((site.directory / "held").exists)
    is_open = pair.shown("read_uncommitted") > pair.shown("read_committed")
    assert is_open == (moment != "committed")
    pair.doomed.signal(signal.SIGKILL)
    assert pair.doomed.wait() == -signal.SIGKILL
    pair.done()
    pair.produce()
    pair.done()
    pair.other.signal(signal.SIGTERM)
    assert pair.other.wait() == 0, pair.other.text()

    shut_out = pair.other.wait_event("producer_fenced")["transactional_id"]
    assert shut_out.startswith(f"headrace.{site.group}.one.")
    found = Counter(each.value() for each in committed_records(site.broker.address, pair.topic))
    assert found == Counter(
        b"%d:%d" % (number, offset) for number in (0, 1) for offset in range(pair.total)
    )
    assert (pair.shown("read_uncommitted") > found.total()) == (moment != "committed")
