"""Channels that re-key before they keep state, in daemons that are killed and paused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import by_key_topic, changelog_name
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import WAIT, spark_section
from tests.integration.extensions.keyed.test_daemon import SPARK_WAIT, arrived, keyed, rows
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site

#: The customers of the facts; one has a name without letters.
CUSTOMERS = ["", *(f"customer-{number}" for number in range(19))]


def orders(count: int, seed: int) -> list[dict[str, Any]]:
    """Return so many facts, each of a customer and with an id of its own."""
    random = Random(seed)
    return [
        {"id": f"{seed}-{number}", "customer": {"id": random.choice(CUSTOMERS)}}
        for number in range(count)
    ]


def send(site: Site, found: list[dict[str, Any]], *, partitioner: str = "consistent") -> None:
    """Produce facts by their own ids, which say nothing of the customers."""
    servers = {"bootstrap.servers": site.broker.address, "partitioner": partitioner}
    producer = Producer(servers)
    for number, order in enumerate(found):
        key = None if number % 2 else order["id"]
        producer.produce(site.topic, json.dumps(order), key)
    assert producer.flush(60) == 0


def topic_of(site: Site) -> str:
    """Return the topic of the re-keyed records."""
    return by_key_topic(site.group, site.topic)


def require_exact(site: Site, output: str, sent: list[dict[str, Any]]) -> None:
    """Assert that each customer's facts were counted once, in one partition by Java's hash."""
    expected = Counter(order["customer"]["id"].encode() for order in sent)
    counted: dict[bytes, list[int]] = {}
    for key, value in rows(site, output):
        counted.setdefault(key, []).append(value["n"])
    assert {key: list(range(1, n + 1)) for key, n in expected.items()} == counted
    states = committed_records(site.broker.address, changelog_name(site.group, topic_of(site)))
    found = {each.key(): json.loads(each.value() or b"") for each in states}
    assert found == {key: {"n": n} for key, n in expected.items()}
    assert {each.partition() for each in states} == {0, 1}
    for each in states:
        assert each.partition() == partition_of(each.key() or b"", 2)


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_facts_are_counted_once_by_another_key(site: Site, engine: str) -> None:
    """Keyless and otherwise partitioned records, and a SIGKILL: each counts once, by its key."""
    output = site.broker.create_topic(2)
    given = keyed(site, output, engine=engine, key="value.customer.id", value="json")
    document = site.document(**given)
    document["spark"] = spark_section(2)
    first = site.daemon(document).start()
    first.wait_event("controller_started", SPARK_WAIT)
    sent = orders(300, 1)
    send(site, sent)
    arrived(site, first, output, 50)
    first.signal(signal.SIGKILL)
    first.wait()
    more = orders(300, 2)
    send(site, more, partitioner="random")
    second = site.daemon(document).start()
    second.wait_event("controller_started", SPARK_WAIT)
    arrived(site, second, output, 600)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    require_exact(site, output, [*sent, *more])


@pytest.mark.parametrize(
    "until", ["latest", pytest.param("2100-01-01T00:00:00Z", marks=pytest.mark.slow)]
)
def test_a_bounded_run_reduces_the_records_that_it_re_keys(site: Site, until: str) -> None:
    """The reduce follows the re-keying's end: each run counts all that was there when it began."""
    output = site.broker.create_topic(2)
    given = keyed(site, output, key="value.customer.id", value="json")
    document, sent = site.document(**given), []
    for seed in (1, 2):  # the first run makes the by-key topic, the second finds it
        sent += orders(200, seed)
        send(site, sent[-200:])
        daemon = site.daemon(document).start("--until", until)
        assert daemon.wait() == 0, daemon.text()
        fixed = [e["channel"] for e in daemon.events() if e["event"] == "bounds_fixed"]
        assert fixed == ["main.rekey", "main"]
        require_exact(site, output, sent)
    daemon = site.daemon(document).start("--until", until)  # nothing is left for it
    assert daemon.wait() == 0, daemon.text()
    require_exact(site, output, sent)


def test_a_re_keyed_record_is_as_it_was(site: Site) -> None:
    """Value, time and headers are kept, and a header says where it was; what has no key is lost."""
    output = site.broker.create_topic(1)
    given = keyed(site, output, key="headers.tenant", value="string")
    given["rejects"] = {"failing": "skip"}
    daemon = site.daemon(site.document(**given)).start()
    daemon.wait_event("controller_started")
    record = FakeRecord(
        key_=b"k", value_=b"v", timestamp_=1_600_000_000_123, headers_=[("tenant", b"t")]
    )
    site.broker.produce(site.partition(1), FakeRecord(value_=b"none"), record)
    arrived(site, daemon, output, 1)
    (found,) = committed_records(site.broker.address, topic_of(site))
    assert (found.key(), found.value()) == (b"t", b"v")
    assert found.timestamp() == (1, 1_600_000_000_123)
    source = f"{site.topic}/1/1".encode()
    assert found.headers() == [("tenant", b"t"), ("headrace-from", source)]
    labels = {"topic": site.topic, "reason": "no_key", "channel": "main.rekey"}
    assert daemon.metric("headrace_skipped_records_total", **labels) == 1
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


@pytest.mark.slow
def test_processed_by_key_records_are_deleted_and_a_restart_goes_on(site: Site) -> None:
    """The by-key topic has no record below the committed offsets; a new start counts on."""
    output = site.broker.create_topic(2)
    given = keyed(
        site, output, key="value.customer.id", value="json", internal={"purge_input": "300ms"}
    )
    document = site.document(**given, commit_interval="100ms")
    first = site.daemon(document).start()
    first.wait_event("controller_started")
    sent = orders(100, 1)
    send(site, sent)
    arrived(site, first, output, 100)
    deadline = Deadline.after(60)
    assert wait_for(lambda: not committed_records(site.broker.address, topic_of(site)), deadline), (
        first.text()
    )
    first.signal(signal.SIGKILL)
    first.wait()
    more = orders(100, 2)
    second = site.daemon(document).start()
    second.wait_event("controller_started")
    send(site, more)
    arrived(site, second, output, 200)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    require_exact(site, output, [*sent, *more])


def _headrace(daemon: Daemon, command: str, *options: str) -> str:
    """Run a command against a daemon, and return what it printed."""
    file = str(daemon.directory / f"{daemon.name}.yaml")
    arguments = [sys.executable, "-m", "headrace", command, *options, "--config", file]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=WAIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_re_keying_channel_rests_by_itself(site: Site) -> None:
    """Paused alone, nothing comes by key; moved alone, it passes over what was skipped."""
    output = site.broker.create_topic(2)
    given = keyed(site, output, key="value.customer.id", value="json")
    daemon = site.daemon(site.document(**given)).start()
    daemon.wait_event("controller_started")
    sent = orders(100, 1)
    send(site, sent)
    arrived(site, daemon, output, 100)
    assert "main.rekey is paused" in _headrace(daemon, "pause", "main.rekey")
    more = orders(100, 2)
    send(site, more)
    lag = {"channel": "main.rekey", "topic": site.topic}

    def waiting() -> float:
        found = [
            daemon.metric("headrace_lag_records", **lag, partition=str(number)) for number in (0, 1)
        ]
        return sum(value or 0 for value in found)

    assert wait_for(lambda: waiting() >= 100, Deadline.after(60)), daemon.text()
    assert len(rows(site, output)) == 100
    listed = _headrace(daemon, "status", "--json")
    channels = {each["name"]: each for each in json.loads(listed)["channels"]}
    assert [bool(channels[name]["pauses"]) for name in ("main", "main.rekey")] == [False, True]
    _headrace(daemon, "seek", f"{site.topic}:1", "--to", "latest")
    _headrace(daemon, "resume", "main.rekey")
    skipped = {
        json.loads(each.value() or b"")["id"]
        for each in committed_records(site.broker.address, site.topic)
        if each.partition() == 1
    }
    left = [order for order in more if order["id"] not in skipped]
    assert 0 < len(left) < 100
    arrived(site, daemon, output, 100 + len(left))
    deadline = Deadline.after(60)
    assert wait_for(lambda: waiting() == 0, deadline), daemon.text()
    shown = {}
    for name in ("main.rekey", "main"):
        listed = _headrace(daemon, "offsets", "show", "--json", "--channel", name)
        shown[name] = json.loads(listed)
    assert site.topic in str(shown["main.rekey"])
    assert topic_of(site) in str(shown["main"])
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    require_exact(site, output, [*sent, *left])


@pytest.mark.slow
def test_a_reload_has_a_channel_re_key(site: Site) -> None:
    """With another key in the file a channel comes before it, and all facts count by that key."""
    output = site.broker.create_topic(2)
    given = keyed(site, output, value="json")
    document = site.document(**given)
    document["channels"]["main"]["rejects"] = {"failing": "skip"}
    daemon = site.daemon(document).start()
    daemon.wait_event("controller_started")
    sent = orders(100, 1)
    send(site, sent)
    # every second one has no key
    arrived(site, daemon, output, 50)
    document["channels"]["main"]["processor"]["key"] = "value.customer.id"
    file = daemon.directory / f"{daemon.name}.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")
    arrived(site, daemon, output, 150)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    states = committed_records(site.broker.address, changelog_name(site.group, topic_of(site)))
    expected = Counter(order["customer"]["id"].encode() for order in sent)
    found = {each.key(): json.loads(each.value() or b"") for each in states}
    assert found == {key: {"n": n} for key, n in expected.items()}


def test_timers_fire_where_a_by_key_topic_is_quiet(site: Site) -> None:
    """A by-key topic ends with a transaction's mark, no record: that is its end all the same."""
    output = site.broker.create_topic(1)
    given = keyed(site, output, reducer="keyed_reducer:wait", idle="1s", key="headers.tenant")
    code = """
from headrace.keyed import Fired, Output, at_event


def wait(key, state, facts, now):
    if isinstance(facts[0], Fired):
        return None, [Output(facts[0].name)], {}
    return 1, [], {"quiet": at_event(facts[0].ts + 500)}
"""
    (site.directory / "keyed_reducer.py").write_text(code, encoding="utf-8")
    daemon = site.daemon(site.document(**given)).start()
    daemon.wait_event("controller_started")
    now = int(SYSTEM_CLOCK.time() * 1000)
    record = FakeRecord(value_=b"v", headers_=[("tenant", b"t")], timestamp_=now)
    site.broker.produce(site.partition(0), record)
    deadline = Deadline.after(60)
    found = wait_for(lambda: committed_records(site.broker.address, output), deadline)
    assert [(each.key(), each.value()) for each in found or ()] == [(b"t", b"quiet")], daemon.text()
