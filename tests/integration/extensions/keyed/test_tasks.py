"""Channels with state that read several topics, in daemons that are killed and started again."""

from __future__ import annotations

import json
import signal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.names import changelog_name
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import spark_section
from tests.integration.daemon.test_offsets import quiet
from tests.integration.daemon.test_reload import Changing
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT, arrived, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.daemon.rig import Site

__all__ = ["quiet"]

_REDUCER = """
from headrace.keyed import Output


def follow(key, state, facts, now):
    values = [fact.value for fact in facts]
    return [*(state or []), *values], [Output(value) for value in values], {}
"""

#: Milliseconds since the epoch of the first fact: recent, or the brokers' retention drops them.
BEGIN = int(SYSTEM_CLOCK.time() * 1000) - 3_600_000

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


def by_key(site: Site, output: str) -> dict[bytes, list[dict[str, Any]]]:
    """Return the outputs of each key, in their order."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for key, value in rows(site, output):
        found.setdefault(key, []).append(value)
    return found


def expected(sent: Sequence[tuple[str, int, int]]) -> dict[bytes, list[dict[str, Any]]]:
    """Return the values of each key in the order of their times."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for fact in sorted(sent, key=lambda each: each[2]):
        found.setdefault(b"%d" % fact[1], []).append(value_of(fact))
    return found


@pytest.mark.parametrize(
    ("engine", "time"),
    [
        ("arrow", "record"),
        pytest.param("arrow", "value.at", marks=pytest.mark.slow),
        pytest.param("spark", "record", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_a_killed_daemon_reduces_two_topics_once_in_the_order_of_their_times(
    site: Site, engine: str, time: str
) -> None:
    """Outputs and states, after SIGKILL in the middle; the topics come one after the other."""
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    document = tasks(site, output, topics, engine=engine, time=time, max_records=20)
    document["spark"] = spark_section(2)
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


@pytest.mark.slow
def test_each_fact_of_two_topics_counts_once_while_members_come_and_die(site: Site) -> None:
    """A third member joins two, the first one is killed; facts of a topic stay in their order."""
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    document = tasks(site, output, topics)
    members = {name: site.daemon({**document, "instance_id": name}) for name in ("one", "two")}
    for daemon in members.values():
        daemon.start()
    for daemon in members.values():
        daemon.wait_event("controller_started", SPARK_WAIT)
    sent: list[tuple[str, int, int]] = []
    for seed in range(3):
        more = facts(topics, 200, seed, BEGIN + 1000 * seed)
        produce(site, more)
        sent += more
        if seed == 0:
            third = site.daemon({**document, "instance_id": "three"}).start()
            third.wait_event("controller_started", SPARK_WAIT)
        if seed == 1:
            members["one"].signal(signal.SIGKILL)
            members["one"].wait()
    arrived(site, third, output, len(sent))
    for daemon in (members["two"], third):
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    got, wanted = by_key(site, output), expected(sent)
    for topic in topics:
        of_topic = {k: [v for v in values if v["of"] == topic] for k, values in got.items()}
        assert of_topic == {k: [v for v in vs if v["of"] == topic] for k, vs in wanted.items()}
    assert dict(rows(site, changelog_name(site.group, site.topic))) == got


def test_a_topic_that_a_reload_adds_is_reduced_into_the_same_state(site: Site) -> None:
    """The channel starts again; its changelog is that of the first topic, as before."""
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    first = facts(topics[:1], 100, 1, BEGIN)
    produce(site, first)
    document = tasks(site, output, topics[:1])
    changing = Changing(site, **document["channels"]["main"])
    arrived(site, changing.daemon, output, 100)
    changing.document["channels"]["main"]["topics"] = topics
    changing.reload()
    second = facts(topics, 100, 2, BEGIN + 1000)
    produce(site, second)
    arrived(site, changing.daemon, output, 200)
    changing.daemon.signal(signal.SIGTERM)
    assert changing.daemon.wait() == 0
    states = dict(rows(site, changelog_name(site.group, site.topic)))
    assert sum(map(len, states.values())) == 200
    assert {k: sorted(v["at"] for v in values) for k, values in states.items()} == {
        k: [v["at"] for v in values] for k, values in expected([*first, *second]).items()
    }


def test_a_forgotten_state_begins_again_with_all_topics(site: Site) -> None:
    """Their offsets are moved in the transaction that deletes the rows.

    So it is once all of them have more partitions, of which rows cannot be moved.
    """
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    sent = facts(topics, 100, 1, BEGIN)
    produce(site, sent)
    document = tasks(site, output, topics)
    daemon = site.daemon(document).start()
    arrived(site, daemon, output, 100)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    path = site.directory / "forget.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")

    def run(command: str, expect: int) -> str:
        done = CliRunner().invoke(app, ["state", *command.split(), "-c", str(path)])
        assert done.exit_code == expect, done.output
        return done.output

    site.broker.add_partitions(topics[1], 3)
    assert "headrace state forget begins again with them" in run("topics", 1)
    assert "Give each of them 3 (kafka-topics.sh --alter)" in run("forget --yes", 2)
    site.broker.add_partitions(topics[0], 3)
    assert f"3 partitions, and the state in {site.group}" in run("topics", 1)
    run("forget --yes", 0)
    run("topics", 0)
    assert rows(site, changelog_name(site.group, site.topic))[-1][1] is None
    again = site.daemon(document).start()
    arrived(site, again, output, 200)
    again.signal(signal.SIGTERM)
    assert again.wait() == 0
    wanted = expected(sent)
    assert by_key(site, output) == {key: values * 2 for key, values in wanted.items()}
    assert dict(rows(site, changelog_name(site.group, site.topic))) == wanted


def test_another_first_topic_begins_no_state_anew(site: Site) -> None:
    """The changelog would be another one: nothing is delivered, and the event says it."""
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    produce(site, facts(topics, 40, 1, BEGIN))
    document = tasks(site, output, topics)
    daemon = site.daemon(document).start()
    arrived(site, daemon, output, 40)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    document["channels"]["main"]["topics"] = topics[::-1]
    again = site.daemon(document).start()
    produce(site, facts(topics, 40, 2, BEGIN + 1000))
    said = again.wait_event("state_at_risk", SPARK_WAIT)
    assert "is another topic than the one with its rows" in said["reason"]
    again.signal(signal.SIGTERM)
    again.wait()
    assert len(rows(site, output)) == 40


def test_a_bounded_run_ends_while_a_topic_goes_on_behind_its_bound(site: Site) -> None:
    """The other topic's records before its own bound wait for no record after a bound."""
    topics = [site.topic, site.broker.create_topic(2)]
    output = site.broker.create_topic(1)
    sent = facts(topics[:1], 40, 1, BEGIN) + facts(topics[1:], 4, 2, BEGIN)
    produce(site, sent)
    daemon = site.daemon(tasks(site, output, topics)).start("--until", "latest")
    daemon.wait_event("bounds_fixed", SPARK_WAIT)
    produce(site, facts(topics[1:], 400, 3, BEGIN + 60_000))
    assert daemon.wait() == 0, daemon.text()
    assert len(rows(site, output)) == len(sent)
