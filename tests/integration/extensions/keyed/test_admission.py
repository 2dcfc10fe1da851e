"""Channels with overflow: each record is processed or copied, once, whatever is killed."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import spark_section, wait_at_work
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site

#: Seconds that a daemon may take that starts Spark.
WAIT = 90.0

#: Records of each of two partitions.
RECORDS = 3_000

_REDUCERS = """
from headrace.keyed import Output


def echo(key, state, facts, now):
    return None, [Output([key, fact.value]) for fact in facts], {}


def rows(df, batch):
    return df.selectExpr("to_json(array(cast(key as string), cast(value as string))) as value")
"""


def produce(site: Site, first: int, last: int) -> None:
    """Produce numbered records to both partitions."""
    for number in (0, 1):
        records = [
            FakeRecord(value_=b"%d" % each, key_=b"%d-%d" % (number, each % 50))
            for each in range(first, last)
        ]
        site.broker.produce(TopicPartition(site.topic, number), *records)


def processed(site: Site, output: str) -> list[tuple[int, int]]:
    """Return which records were processed: partition and number."""
    found = [
        json.loads(each.value() or b"") for each in committed_records(site.broker.address, output)
    ]
    return [(int(key.partition("-")[0]), int(value)) for key, value in found]


def copied(site: Site, topic: str) -> list[tuple[int, int]]:
    """Return which records were copied; the headers agree with them."""
    found = []
    for each in committed_records(site.broker.address, topic):
        pairs: list[tuple[str, bytes]] = [*(each.headers() or ())]
        said = {name: value.decode() for name, value in pairs}
        number = int(said["headrace.partition"])
        assert (said["headrace.topic"], said["headrace.offset"]) == (
            site.topic,
            (each.value() or b"").decode(),
        )
        assert (each.key() or b"").decode() == f"{number}-{int(said['headrace.offset']) % 50}"
        found.append((number, int(said["headrace.offset"])))
    return found


def document_of(
    site: Site, output: str, kind: str, rejects: dict[str, Any], **rate: int
) -> dict[str, Any]:
    """Return the configuration of a channel with small batches."""
    (site.directory / "overflowing.py").write_text(_REDUCERS, encoding="utf-8")
    if kind == "keyed":
        processor = {"type": "keyed", "engine": "arrow", "reducer": "overflowing:echo"}
        processor["value"] = "string"
    else:
        processor = {"type": "spark", "reducer": "overflowing:rows"}
    document = site.document(
        processor={**processor, **rate},
        rejects=rejects,
        sink={"type": "kafka", "topic": output},
        batch={"max_records": 100, "linger": "10ms"},
    )
    document["spark"] = spark_section(2)
    return document


def done(site: Site, daemon: Daemon, output: str, left: str, count: int) -> None:
    """Wait until so many records are processed or copied."""

    def is_done() -> bool:
        return len(processed(site, output)) + len(copied(site, left)) >= count

    assert wait_at_work(is_done, WAIT), daemon.text()


@pytest.mark.parametrize(
    ("kind", "choice"), [("keyed", "newest"), ("keyed", "sample"), ("spark", "oldest")]
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_record_is_processed_or_copied_once(site: Site, kind: str, choice: str) -> None:
    """Though the daemon is killed among them: processed and overflow together are what was read."""
    output, left = site.broker.create_topic(2), site.broker.create_topic(2)
    produce(site, 0, RECORDS)
    rejects = {
        "overflow": "dead_letter",
        "max_pending": 700,
        "overflow_choice": choice,
        "topic": left,
    }
    document = document_of(site, output, kind, rejects)
    first = site.daemon(document).start()
    done(site, first, output, left, 300)
    first.signal(signal.SIGKILL)
    first.wait()
    produce(site, RECORDS, RECORDS + 1_000)
    second = site.daemon(document).start()
    second.wait_event("controller_started", WAIT)
    everything = [(number, each) for number in (0, 1) for each in range(RECORDS + 1_000)]
    done(site, second, output, left, len(everything))
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    own, others = processed(site, output), copied(site, left)
    assert sorted([*own, *others]) == everything
    assert own
    assert others


@pytest.mark.slow
def test_a_rate_is_kept_by_all_partitions_together(site: Site) -> None:
    """With batches in flight too: nothing overflows, and it takes as long as the rate says."""
    output = site.broker.create_topic(2)
    document = document_of(site, output, "keyed", {}, max_rate=200)
    daemon = site.daemon(document).start()
    daemon.wait_event("controller_started", WAIT)
    begin = SYSTEM_CLOCK.monotonic()
    produce(site, 0, 1_000)
    everything = [(number, each) for number in (0, 1) for each in range(1_000)]
    assert wait_for(
        lambda: len(processed(site, output)) >= len(everything), Deadline.after(WAIT)
    ), daemon.text()
    # two batches of each partition are not held back by those before them
    assert SYSTEM_CLOCK.monotonic() - begin >= (2_000 - 2 * 2 * 100) / 200
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert sorted(processed(site, output)) == everything
