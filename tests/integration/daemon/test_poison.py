from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.core.records import TopicPartition
from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

QUICK = {"backoff": "1ms", "max_backoff": "10ms"}


def _fill(site: Site) -> None:
    site.broker.produce(site.partition(0), b"a", b"b", b"poison", b"c")
    site.broker.produce(site.partition(1), b"x", b"y")


def test_poison_is_skipped_and_counted(site: Site) -> None:
    """With skip, one record is given up after retry.attempts; everything else is delivered once."""
    _fill(site)
    daemon = site.run("refuse_poison", retry={"attempts": 3, **QUICK}, rejects={"failing": "skip"})
    eventually(lambda: site.offsets() == [4, 2])
    assert sorted(site.seen()) == ["a", "b", "c", "x", "y"]
    skipped = daemon.wait_event("batch_skipped")
    assert (skipped["first_offset"], skipped["records"], skipped["attempts"]) == (2, 1, 3)
    where = {"channel": "main", "topic": site.topic, "reason": "failing"}
    assert daemon.metric("headrace_skipped_records_total", **where) == 1
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_poison_may_stop_the_channel(site: Site) -> None:
    """With stop, the process ends with exit 4, committed up to the record and not past it."""
    _fill(site)
    daemon = site.run("refuse_poison", retry={"attempts": 2, **QUICK})
    assert daemon.wait() == 4
    assert "cannot decode this" in daemon.wait_event("channel_failed")["error"]
    assert site.offsets()[0] == 2
    assert site.nodes() == []


def test_poison_holds_up_its_own_partition_only(site: Site) -> None:
    """With retry, the others run on, and the stop is in order and commits nothing past it."""
    _fill(site)
    daemon = site.run("refuse_poison", retry={**QUICK})
    eventually(lambda: site.offsets() == [2, 2])
    site.broker.produce(site.partition(1), b"z")
    eventually(lambda: site.offsets() == [2, 3])
    assert sorted(site.seen()) == ["a", "b", "x", "y", "z"]
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert site.offsets() == [2, 3]


#: A processor of batches that ends the process, once, when a record is passed over: what was sent
#: to the dead-letter topic is there by then, and no offset is committed.
_KILLED = """
import os
import pathlib
import signal

from headrace import BatchProcessor, BatchResponse

HERE = pathlib.Path(__file__).parent


class Killed(BatchProcessor):
    def on_next_batch(self, batch):
        values = [record.value() for record in batch.records]
        if b"poison" in values:
            raise ValueError("cannot decode this")
        with (HERE / "seen").open("ab", buffering=0) as file:
            file.write(b"".join(value + b"\\n" for value in values))
        return BatchResponse.advance()

    def pass_over(self, batch):
        marker = HERE / "killed"
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def _dead_letters(topic: str, **limits: int | str) -> dict[str, Any]:
    letters = {"topic": topic, **limits}
    return {"retry": {"attempts": 2, **QUICK}, "rejects": {"failing": "dead_letter", **letters}}


def test_poison_goes_to_the_dead_letter_topic(site: Site) -> None:
    """It is there with its origin and counted; everything else is delivered, and committed."""
    _fill(site)
    dead = TopicPartition(site.broker.create_topic(), 0)
    daemon = site.run("refuse_poison", **_dead_letters(dead.topic, headers="connect"))
    eventually(lambda: site.offsets() == [4, 2])
    assert sorted(site.seen()) == ["a", "b", "c", "x", "y"]
    (letter,) = site.broker.read(dead, 1)
    headers = dict(letter.headers() or [])
    assert letter.value() == b"poison"
    assert headers["__connect.errors.offset"] == b"2"
    assert headers["__connect.errors.topic"] == site.topic.encode()
    assert headers["__connect.errors.exception.message"] == b"cannot decode this"
    where = {"channel": "main", "topic": site.topic}
    assert daemon.metric("headrace_dead_lettered_records_total", **where) == 1
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_a_kill_between_letter_and_commit_leaves_the_letter_twice(site: Site) -> None:
    """The record fails again after the restart; key and origin of both letters are the same."""
    (site.directory / "killed_once.py").write_text(_KILLED, encoding="utf-8")
    _fill(site)
    dead = TopicPartition(site.broker.create_topic(), 0)
    fields: dict[str, Any] = {
        "processor": {"type": "custom", "factory": "killed_once:Killed"},
        "sink": None,
        **_dead_letters(dead.topic),
    }
    first = site.run(**fields)
    assert first.wait() == -signal.SIGKILL
    assert site.broker.end(dead) == 1
    assert (site.offsets()[0] or 0) <= 2
    daemon = site.run(**fields)
    eventually(lambda: site.offsets() == [4, 2])
    letters = site.broker.read(dead, 2)
    assert site.broker.end(dead) == 2
    assert {letter.value() for letter in letters} == {b"poison"}
    said = [dict(letter.headers() or []) for letter in letters]
    names = [f"headrace.{name}" for name in ("group", "topic_id", "partition", "offset")]
    assert len({tuple(each[name] for name in names) for each in said}) == 1
    assert set(site.seen()) == {"a", "b", "c", "x", "y"}
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_too_much_poison_stops_the_process(site: Site) -> None:
    """Beyond a limit nothing more is sent: exit 4, committed up to the record and not past it."""
    site.broker.produce(site.partition(0), *[b"poison"] * 5)
    dead = TopicPartition(site.broker.create_topic(), 0)
    daemon = site.run("refuse_poison", **_dead_letters(dead.topic, max_consecutive=2))
    assert daemon.wait() == 4
    assert "3 records in a row (max_consecutive: 2)" in daemon.wait_event("channel_failed")["error"]
    assert site.broker.end(dead) == 2
    assert site.offsets()[0] == 2


def test_a_ratio_of_thirty_percent_stops_the_process_after_a_few_hundred_records(
    site: Site,
) -> None:
    """The limit per thousand ends it, and most records need no try that waits for a back-off."""
    bad = [Random(number).random() < 0.3 for number in range(1000)]
    values = [b"poison" if each else b"%d" % number for number, each in enumerate(bad)]
    site.broker.produce(site.partition(0), *values)
    dead = TopicPartition(site.broker.create_topic(), 0)
    limits = _dead_letters(dead.topic) | {
        "retry": {"attempts": 5, "backoff": "20ms", "max_backoff": "1s"}
    }
    daemon = site.run("refuse_poison", **limits)
    assert daemon.wait() == 4
    expected = "101 records within 1000 offsets (max_per_thousand: 100)"
    assert expected in daemon.wait_event("channel_failed")["error"]
    assert site.broker.end(dead) == 100
    assert site.offsets()[0] == sum(1 for _ in site.seen()) + 100 < 400
    sent = [line for line in daemon.events() if line["event"] == "record_dead_lettered"]
    assert sum(line["attempts"] > 1 for line in sent) < 15
