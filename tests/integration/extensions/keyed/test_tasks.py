"""Channels with state that read several topics, in daemons that are killed and started again."""

from __future__ import annotations

import json
import signal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.names import changelog_name
from headrace.testing.records import TIMESTAMP, FakeRecord
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT, rows
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.daemon.rig import Daemon, Site

_REDUCER = """
from headrace.keyed import Output


def follow(key, state, facts, now):
    values = [fact.value for fact in facts]
    return [*(state or []), *values], [Output(value) for value in values], {}
"""

#: Milliseconds since the epoch of the first fact, after the time that stands for none.
BEGIN = TIMESTAMP + 1

KEYS = range(12)


def tasks(site: Site, output: str, topics: Sequence[str], **processor: Any) -> dict[str, Any]:
    """Return a configuration whose channel keeps the facts of each key, in their order."""
    (site.directory / "task_reducer.py").write_text(_REDUCER, encoding="utf-8")
    return site.document(
        topics=list(topics),
        processor={
            "type": "keyed",
            "reducer": "task_reducer:follow",
            "engine": "arrow",
            **processor,
        },
        sink={"type": "kafka", "topic": output},
    )


def facts(topics: Sequence[str], count: int, seed: int, begin: int) -> list[tuple[str, int, int]]:
    """Return so many facts: topic, key and time, in the order of their times, all different."""
    random = Random(seed)
    return [
        (random.choice(topics), random.choice(KEYS), begin + 2 * number) for number in range(count)
    ]


def value_of(fact: tuple[str, int, int]) -> dict[str, Any]:
    """Return the value that a fact is produced with."""
    topic, _, time = fact
    return {"at": time, "of": topic}


def produce(site: Site, sent: Sequence[tuple[str, int, int]]) -> None:
    """Produce facts, one topic after the other: the broker has them in no order of their times."""
    for topic in sorted({topic for topic, _, _ in sent}):
        for number in (0, 1):
            records = [
                FakeRecord(
                    key_=b"%d" % key, value_=json.dumps(value_of(fact)).encode(), timestamp_=time
                )
                for fact in sent
                for of, key, time in [fact]
                if of == topic and key % 2 == number
            ]
            site.broker.produce(TopicPartition(topic, number), *records)


def arrived(site: Site, daemon: Daemon, output: str, count: int) -> None:
    """Wait until so many outputs can be read."""
    deadline = Deadline.after(SPARK_WAIT)
    found = lambda: len(committed_records(site.broker.address, output))  # noqa: E731
    assert wait_for(lambda: found() >= count, deadline), daemon.text()


def by_key(site: Site, output: str) -> dict[bytes, list[dict[str, Any]]]:
    """Return the outputs of each key, in their order."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for record in committed_records(site.broker.address, output):
        value = json.loads(record.value() or b"null")
        found.setdefault(record.key() or b"", []).append(value)
    return found


def expected(sent: Sequence[tuple[str, int, int]]) -> dict[bytes, list[dict[str, Any]]]:
    """Return the values of each key in the order of their times."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for fact in sorted(sent, key=lambda each: each[2]):
        found.setdefault(b"%d" % fact[1], []).append(value_of(fact))
    return found


@pytest.mark.parametrize("time", ["record", "value.at"])
@pytest.mark.timeout(400)
def test_a_killed_daemon_reduces_two_topics_once_in_the_order_of_their_times(
    site: Site, time: str
) -> None:
    """Outputs and states, after SIGKILL in the middle; the topics come one after the other."""
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    document = tasks(site, output, topics, time=time, max_records=20)
    document["channels"]["main"]["batch"] = {"max_records": 10, "linger": 0}
    sent = facts(topics, 600, 1, BEGIN)
    produce(site, sent)
    first = site.daemon(document).start()
    arrived(site, first, output, 60)
    first.signal(signal.SIGKILL)
    first.wait()
    more = facts(topics, 200, 2, BEGIN + 2000)
    produce(site, more)
    second = site.daemon(document).start()
    arrived(site, second, output, 800)
    assert second.metric("headrace_enforced_processing_total", channel="main")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    wanted = expected([*sent, *more])
    assert by_key(site, output) == wanted
    assert dict(rows(site, changelog_name(site.group, site.topic))) == wanted
