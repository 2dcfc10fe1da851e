"""Elements in a daemon: a stream that leads back to its channel, one instance a partition."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import wait_at_work
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site

#: Seconds that a test may wait for what elements emit.
WAIT = 90.0

_CODE = '''
from dataclasses import dataclass

from headrace.apps.elements import Element, Stream


@dataclass
class Echo(Element):
    """Sends each event on to its own stream, twice, until it has gone round often enough."""

    again = Stream("out", key="name")

    def on_event(self, event):
        if event.value["left"]:
            for branch in "ab":
                name = event.value["name"] + branch
                sent = {"name": name, "left": event.value["left"] - 1, "pad": event.value["pad"]}
                self.emit(self.again, sent)


@dataclass
class Alone(Element):
    """Counts all that its partition has."""

    counts = Stream("out", key="key")

    events: int = 0
    created: int = 0

    def on_create(self):
        self.created += 1

    def on_event(self, event):
        self.events += 1
        self.emit(self.counts, {"key": self.key, "events": self.events, "created": self.created})


echo = Echo.as_reducer()
alone = Alone.as_reducer()
'''


def run(site: Site, reducer: str, output: str, key: str, **channel: Any) -> Daemon:
    """Run a channel of an element."""
    (site.directory / "elements_here.py").write_text(_CODE, encoding="utf-8")
    processor = {"type": "keyed", "engine": "arrow", "reducer": f"elements_here:{reducer}"}
    sink = {"type": "kafka", "topic": output, "loop": output == site.topic}
    document = site.document(processor={**processor, "key": key}, sink=sink, **channel)
    return site.daemon(document).start()


def values(site: Site, topic: str) -> list[Any]:
    """Return what readers of committed records see."""
    return [
        json.loads(each.value() or b"") for each in committed_records(site.broker.address, topic)
    ]


def arrived(site: Site, daemon: Daemon, topic: str, count: int) -> list[Any]:
    """Return the values of a topic once there are so many."""
    found = wait_at_work(lambda: len(values(site, topic)) >= count, WAIT)
    assert found, daemon.text()
    return values(site, topic)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stream_that_leads_back_to_its_channel_never_blocks_it(site: Site) -> None:
    """Though what is under way is many times what the channel may have in memory: all goes round.

    S4 warns of this: with its blocking executors, full queues in a cycle wait for each other.
    """
    seeds, rounds = 20, 5
    for number in (0, 1):
        sent: list[dict[str, Any]] = [
            {"name": f"{number}-{seed}", "left": rounds, "pad": "x" * 1_000}
            for seed in range(seeds)
        ]
        records = [
            FakeRecord(key_=each["name"].encode(), value_=json.dumps(each).encode())
            for each in sent
        ]
        site.broker.produce(site.partition(number), *records)
    small = {"batch": {"max_bytes": "16KiB"}, "buffer": {"max_bytes": "64KiB"}}
    daemon = run(site, "echo", site.topic, "record", **small)
    expected = {rounds - each: 2 * seeds * 2**each for each in range(rounds + 1)}
    found = arrived(site, daemon, site.topic, sum(expected.values()))
    assert Counter(each["left"] for each in found) == expected
    assert len({each["name"] for each in found}) == len(found)


def test_with_the_partition_as_its_key_an_element_is_one_instance_a_partition(site: Site) -> None:
    """It sees all records of the partition in their order, with keys or without, and no others."""
    output = site.broker.create_topic(2)
    keyed = [FakeRecord(key_=b"%d" % each, value_=b"{}") for each in range(40)]
    site.broker.produce(site.partition(0), *keyed)
    site.broker.produce(site.partition(1), *[b"{}"] * 30)
    daemon = run(site, "alone", output, "partition")
    found = arrived(site, daemon, output, 70)
    for key, count in (("0", 40), ("1", 30)):
        mine = [each for each in found if each["key"] == key]
        assert [each["events"] for each in mine] == list(range(1, count + 1))
        assert {each["created"] for each in mine} == {1}
