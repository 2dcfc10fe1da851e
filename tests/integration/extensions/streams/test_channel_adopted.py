"""``headrace streams adopt`` on real servers: each fact counts once, in a channel or a topology."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from headrace.core.records import TopicPartition
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import by_key_topic
from headrace.testing.records import FakeRecord
from tests.integration.extensions.keyed.test_daemon import rows
from tests.integration.extensions.streams.commands import (
    EFFECTS,
    headrace,
    killed_at_every_effect,
    run_to_the_end,
    wait_for_members,
)
from tests.integration.extensions.streams.test_daemon import BEGIN, stop

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

_COUNTING = """
from headrace.keyed import Fired, Output, at_event
from headrace.streams import Field, Row, Topology


class Fact(Row):
    who: Field[str]


class Seen(Row):
    n: Field[int]


def count(key, state, facts, now):
    outputs, seen, timers = [], state or 0, {}
    for fact in facts:
        if isinstance(fact, Fired):
            seen += 1000
            continue
        seen += 1
        outputs.append(Seen(n=seen) if isinstance(fact.value, Row) else Output({"n": seen}))
        timers = {"quiet": at_event(fact.ts + 3_600_000)}
    return seen, outputs, timers


def counted(facts, output):
    app = Topology()
    app.stream(facts, Fact).reduce(count, name="counts", rows=Seen).to(output)
    return app


def counted_by_key(facts, output):
    app = Topology()
    by_who = app.stream(facts, Fact).key_by(Fact.who, name="who")
    by_who.reduce(count, name="counts", rows=Seen).to(output)
    return app
"""

KEYS = [b"key-%d" % number for number in range(20)]


@dataclass
class Counting:
    """A channel that counts facts by key, a topology that does, and what both write.

    ``key`` is record, or a field by which records are written again.
    """

    site: Site
    key: str = "record"
    output: str = ""
    sent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        name = f"counting_{self.site.group.replace('.', '_')}"
        (self.site.directory / f"{name}.py").write_text(_COUNTING, encoding="utf-8")
        self.output = self.site.broker.create_topic(1)
        self.channel = self.site.document(
            processor={
                "type": "keyed",
                "engine": "arrow",
                "reducer": f"{name}:count",
                "key": self.key,
            },
            sink={"type": "kafka", "topic": self.output},
        )
        options = {"facts": self.site.topic, "output": self.output}
        channel = {"coordinator": {"type": "dynamic", "rebalance_delay": "50ms"}}
        section = {
            "code": f"{name}:{'counted' if self.key == 'record' else 'counted_by_key'}",
            "group": f"{self.site.group}-next",
            "options": options,
            "channel": channel,
        }
        both = {**self.channel, "topologies": {"next": section}}
        self.topology = {name: each for name, each in both.items() if name != "channels"}
        self.file = self.site.directory / "headrace.yaml"
        self.file.write_text(json.dumps(both), encoding="utf-8")

    def send(self, time: int) -> None:
        """Produce a fact of each key."""
        self.sent += 1
        for at, key in enumerate(KEYS):
            value = json.dumps({"who": key.decode()}).encode()
            record = FakeRecord(key_=key, value_=value, timestamp_=time)
            # what is written again by key may be anywhere before
            number = partition_of(key, 2) if self.key == "record" else (at + self.sent) % 2
            self.site.broker.produce(self.site.partition(number), record)

    def require_counted(self, timers: int) -> None:
        """Assert that each key was counted once for each fact, by channel and topology together.

        ``timers``: of the last count so many timers fired before it.
        """
        found: dict[bytes, list[int]] = {}
        for key, value in rows(self.site, self.output):
            found.setdefault(key, []).append(value["n"])
        counts = list(range(1, self.sent + 1))
        counts[-1] += 1000 * timers
        assert found == dict.fromkeys(KEYS, counts)


@pytest.mark.parametrize("key", ["record", "value.who"])
@pytest.mark.timeout(300)
def test_a_reducer_in_a_topology_goes_on_with_the_counts_of_a_channel(site: Site, key: str) -> None:
    """With its timers; done again it changes nothing, and is refused once the topology ran."""
    counting = Counting(site, key)
    counting.send(BEGIN)
    counting.send(BEGIN + 1_000)
    running = site.daemon(counting.channel).start()
    wait_for_members(counting.file, "main")
    adopt = ("streams", "adopt", "main", "--as", "counts")
    assert "has members" in headrace(counting.file, *adopt, expect=3).stderr
    stop(running)
    run_to_the_end(site, counting.channel)
    taken = headrace(counting.file, *adopt)
    assert f"{len(KEYS)} keys of {site.group}.{site.topic}." in taken.stdout
    assert "are taken over by reduce 'counts'" in taken.stdout
    assert "take channel main out of the configuration" in taken.stderr
    assert "were taken over before by reduce 'counts'" in headrace(counting.file, *adopt).stdout
    counting.send(BEGIN + 3_700_000)
    run_to_the_end(site, counting.topology)
    counting.require_counted(timers=1)
    refused = headrace(counting.file, *adopt, expect=2).stderr
    assert f"has offsets in group {site.group}-next." in refused
    assert "as one that ran has" in refused


def test_records_by_key_that_no_count_has_are_not_left_behind(site: Site) -> None:
    """They are named, and nothing is changed."""
    counting = Counting(site, "value.who")
    counting.send(BEGIN)
    run_to_the_end(site, counting.channel)
    unread = TopicPartition(by_key_topic(site.group, site.topic), partition_of(KEYS[0], 2))
    site.broker.produce(unread, FakeRecord(key_=KEYS[0], value_=b'{"who": "key-0"}'))
    adopt = ("streams", "adopt", "main", "--as", "counts")
    assert f"{unread} has 1 unread records" in headrace(counting.file, *adopt, expect=2).stderr
    run_to_the_end(site, counting.channel)
    assert f"{len(KEYS)} keys of " in headrace(counting.file, *adopt).stdout


@pytest.mark.slow
@pytest.mark.parametrize("key", ["record", "value.who"])
@pytest.mark.timeout(1200)
def test_each_fact_counts_once_wherever_taking_over_is_killed(site: Site, key: str) -> None:
    """Run again it does what is left: no count begins from nothing, and none is taken twice."""
    counting = Counting(site, key)
    counting.send(BEGIN)
    run_to_the_end(site, counting.channel)
    assert killed_at_every_effect(counting.file, "adopt") > EFFECTS
    counting.send(BEGIN + 1_000)
    run_to_the_end(site, counting.topology)
    counting.require_counted(timers=0)
