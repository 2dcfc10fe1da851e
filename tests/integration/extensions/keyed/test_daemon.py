"""Channels with state in daemons that are stopped, killed and started again."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.names import changelog_name
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import spark_section
from tests.integration.daemon.test_reload import Changing
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site

#: Seconds that a daemon may take that starts Spark.
SPARK_WAIT = 90.0

_REDUCER = """
from headrace.keyed import Fired, Output, at_clock, at_event


def count(key, state, facts, now):
    for fact in facts:
        if isinstance(fact, Fired):
            return state, [Output({"key": key, "n": state["n"], "fired": fact.name})], {}
        state = {"n": (state or {"n": 0})["n"] + 1}
    return state, [Output({"key": key, **state})], {}


def count_and_wait(key, state, facts, now):
    state, outputs, _ = count(key, state, facts, now)
    if isinstance(facts[0], Fired):
        return state, outputs, {}
    return state, outputs, {"clock": at_clock(now + 300), "event": at_event(facts[0].ts + 500)}
"""


def keyed(site: Site, output: str, **processor: Any) -> dict[str, Any]:
    """Return what makes the site's channel one with state."""
    (site.directory / "keyed_reducer.py").write_text(_REDUCER, encoding="utf-8")
    return {
        "processor": {
            "type": "keyed",
            "reducer": "keyed_reducer:count",
            "engine": "arrow",
            "value": "string",
            **processor,
        },
        "sink": {"type": "kafka", "topic": output},
    }


def facts(count: int, seed: int) -> list[tuple[int, bytes]]:
    """Return so many facts: a partition and a key each; a key is always of the same partition."""
    random = Random(seed)
    keys = [random.randrange(20) for _ in range(count)]
    return [(key % 2, b"key-%d" % key) for key in keys]


def produce(site: Site, sent: list[tuple[int, bytes]]) -> None:
    """Produce the facts, each partition's in order."""
    for number in (0, 1):
        mine = [FakeRecord(value_=b"v", key_=key) for partition, key in sent if partition == number]
        site.broker.produce(site.partition(number), *mine)


def rows(site: Site, topic: str) -> list[tuple[bytes, Any]]:
    """Return keys and values of what readers of committed records see."""
    found = committed_records(site.broker.address, topic)
    return [(each.key() or b"", json.loads(each.value() or b"null")) for each in found]


def arrived(site: Site, daemon: Daemon, output: str, count: int) -> None:
    """Wait until so many outputs can be read."""
    deadline = Deadline.after(SPARK_WAIT)
    assert wait_for(lambda: len(rows(site, output)) >= count, deadline), daemon.text()


def require_exact(site: Site, output: str, sent: list[tuple[int, bytes]]) -> None:
    """Assert that each key was counted once for each fact, in outputs and in the changelog."""
    expected = Counter(key for _, key in sent)
    counted: dict[bytes, list[int]] = {}
    for key, value in rows(site, output):
        counted.setdefault(key, []).append(value["n"])
    assert {key: list(range(1, n + 1)) for key, n in expected.items()} == counted
    states = dict(rows(site, changelog_name(site.group, site.topic)))
    assert {key: {"n": n} for key, n in expected.items()} == states


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_a_killed_daemon_goes_on_with_its_state(site: Site, engine: str) -> None:
    """After SIGKILL, and without its local store, each fact counts once in outputs and states."""
    output = site.broker.create_topic(2)
    sent = facts(300, 1)
    document = site.document(**keyed(site, output, engine=engine))
    document["spark"] = spark_section(2)
    first = site.daemon(document).start()
    first.wait_event("controller_started", SPARK_WAIT)
    produce(site, sent)
    arrived(site, first, output, 50)
    first.signal(signal.SIGKILL)
    first.wait()
    more = facts(300, 2)
    produce(site, more)
    second = site.daemon(document).start()
    second.wait_event("controller_started", SPARK_WAIT)
    arrived(site, second, output, 600)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    shutil.rmtree(site.directory / "state" / "one" / "keyed")
    third = site.daemon(document).start()
    third.wait_event("controller_started", SPARK_WAIT)
    last = facts(50, 3)
    produce(site, last)
    arrived(site, third, output, 650)
    third.signal(signal.SIGTERM)
    assert third.wait() == 0
    require_exact(site, output, [*sent, *more, *last])


def test_timers_fire_without_records(site: Site) -> None:
    """Timers fire by the clock, or as a quiet partition's stream time follows it; each key once."""
    output = site.broker.create_topic(1)
    given = keyed(site, output, reducer="keyed_reducer:count_and_wait", idle="1s")
    daemon = site.daemon(site.document(**given)).start()
    daemon.wait_event("controller_started")
    produce(site, [(0, b"a"), (1, b"b")])
    arrived(site, daemon, output, 4)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    found = Counter((key, value.get("fired")) for key, value in rows(site, output))
    # returning no timers cancels the other one: whichever comes first is the only one
    fired = [name for (_, name), count in found.items() for _ in range(count) if name]
    assert len(fired) == len({key for key, name in found if name}) == 2


def test_how_late_a_fact_may_be_changes_in_place(site: Site) -> None:
    """The next one is dropped or counted as configured now; no partition is given back for it."""
    output = site.broker.create_topic(1)
    changing = Changing(site, **keyed(site, output, grace="10s"), rejects={"late": "skip"})

    def send(*times: int) -> None:
        records = [FakeRecord(value_=b"v", key_=b"k", timestamp_=each) for each in times]
        site.broker.produce(site.partition(0), *records)

    send(100_000, 80_000, 100_000)
    arrived(site, changing.daemon, output, 1)
    changing.document["channels"]["main"]["processor"]["grace"] = "1m"
    changing.reload()
    send(80_000)
    assert wait_for(
        lambda: rows(site, output)[-1][1] == {"key": "k", "n": 3}, Deadline.after(SPARK_WAIT)
    ), changing.daemon.text()
    assert changing.count("partition_released") == 0
    changing.daemon.signal(signal.SIGTERM)
    assert changing.daemon.wait() == 0


def test_a_topic_that_is_not_compacted_is_refused_as_changelog(site: Site) -> None:
    """States would be lost from it; the start says what to do."""
    name = changelog_name(site.group, site.topic)
    site.broker.create_topic(2, name=name)
    daemon = site.daemon(site.document(**keyed(site, site.broker.create_topic(1)))).start()
    assert daemon.wait() == 3
    assert "is not compacted" in daemon.text()
