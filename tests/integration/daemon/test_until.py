"""Bounded runs of real daemons."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.positions import format_moment
from headrace.testing.records import FakeRecord
from tests.integration.daemon.rig import WAIT, eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site


def numbered(prefix: str, count: int) -> list[bytes]:
    """Return so many different values."""
    return [f"{prefix}-{number}".encode() for number in range(count)]


def ended(daemon: Daemon) -> bool:
    """Wait until a bounded run is over, with exit code 0."""
    code = daemon.wait()
    assert code == 0, daemon.text()
    names: list[str] = [event["event"] for event in daemon.events()]
    assert names.index("bounds_fixed") < names.index("bounds_reached")
    return names[-1] == "controller_stopped"


def test_a_run_until_latest_ends_by_itself(site: Site) -> None:
    """Records from before the start are delivered and committed, also behind transactions."""
    site.broker.produce(site.partition(0), *numbered("plain", 2500))
    site.broker.transact(site.partition(1), *numbered("kept", 10))
    site.broker.transact(site.partition(1), *numbered("aborted", 10), commit=False)
    daemon = site.daemon(site.document()).start("--until", "latest")
    assert ended(daemon)
    assert sorted(site.seen()) == sorted(
        [f"plain-{n}" for n in range(2500)] + [f"kept-{n}" for n in range(10)]
    )
    assert site.offsets() == [2500, 22]
    assert site.nodes() == []


def test_an_open_transaction_does_not_hold_a_run_up(site: Site) -> None:
    """Open records are not part of the run: the bound is what a reader sees at the start."""
    site.broker.produce(site.partition(0), *numbered("plain", 5))
    producer = Producer(
        {"bootstrap.servers": site.broker.address, "transactional.id": site.group, "log_level": 0}
    )
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce(site.topic, b"open", partition=0)
    assert producer.flush(WAIT) == 0
    assert ended(site.daemon(site.document()).start("--until", "latest"))
    producer.abort_transaction(WAIT)
    assert site.offsets() == [5, 0]
    assert len(site.seen()) == 5


def test_a_run_that_has_nothing_to_do_ends_too(site: Site) -> None:
    """Empty partitions: the start positions are committed, and that is all."""
    daemon = site.daemon(site.document()).start("--until", "latest")
    assert ended(daemon)
    assert site.offsets() == [0, 0]


def test_a_run_until_a_time_stops_before_the_first_record_not_older(site: Site) -> None:
    """Each partition has its own bound; a second run goes on from there."""
    noon = int(SYSTEM_CLOCK.time()) * 1000 - 60_000
    for number, before, after in ((0, 20, 5), (1, 3, 0)):
        old = [FakeRecord(value_=b"old", timestamp_=noon - 1000 + n) for n in range(before)]
        new = [FakeRecord(value_=b"new", timestamp_=noon + n) for n in range(after)]
        site.broker.produce(site.partition(number), *old, *new)
    assert ended(site.daemon(site.document()).start("--until", format_moment(noon)))
    assert site.offsets() == [20, 3]
    assert site.seen() == ["old"] * 23
    assert ended(site.daemon(site.document()).start("--until", "latest"))
    assert site.offsets() == [25, 3]
    assert site.seen() == ["old"] * 23 + ["new"] * 5


def test_a_run_that_fails_for_good_ends_with_the_error(site: Site) -> None:
    """With policy retry too: exit code 4, partition and error are named, the rest is committed."""
    site.broker.produce(site.partition(0), *numbered("good", 5), b"poison")
    site.broker.produce(site.partition(1), *numbered("other", 5))
    quick = {"retry": {"backoff": "300ms", "max_backoff": "1s"}}
    document = site.document("refuse_poison", **quick, batch={"max_records": 5, "linger": 0})
    daemon = site.daemon(document).start("--until", "latest")
    assert daemon.wait() == 4
    (failed,) = [event for event in daemon.events() if event["event"] == "channel_failed"]
    assert f"{site.partition(0)}: the batch at offset 5 failed 5 times" in failed["error"]
    assert "ValueError: cannot decode this" in failed["error"]
    assert site.offsets() == [5, 5]


@pytest.mark.slow
def test_the_members_of_a_group_end_together(site: Site) -> None:
    """One that is ahead waits; when the slow one is stopped, it takes over and finishes."""
    site.broker.produce(site.partition(0), *numbered("a", 50))
    site.broker.produce(site.partition(1), *numbered("b", 50))
    small = {"linger": 0, "max_records": 5}
    first = site.daemon(site.document("dawdle", batch=small)).start("--until", "latest")
    first.wait_event("member_joined")
    other = {**site.document(), "instance_id": "two", "state_dir": str(site.directory / "two")}
    second = site.daemon(other).start("--until", "latest")
    eventually(lambda: 50 in site.offsets())
    assert second.running.poll() is None
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert ended(second)
    assert site.offsets() == [50, 50]


def test_a_moment_that_is_none_is_refused(site: Site) -> None:
    """Exit code 2 and a sentence that shows how to write a time."""
    daemon = site.daemon(site.document()).start("--until", "tomorrow")
    assert daemon.wait() == 2
    assert "2013-01-01T05:00:00Z" in daemon.text()
