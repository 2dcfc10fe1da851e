"""A member keeps copies of others' tasks, and takes them over from where the copy is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.runtime import standbys
from headrace.extensions.keyed.store import Position
from headrace.processors.contract import GroupTasks
from headrace.testing.records import FakeAssignment, FakeRecord
from tests.unit.processors.keyed_bench import CHANGELOG, INPUT, PATIENCE, KeyedBench, configured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.processors.keyed_bench import KeyedDaemon

OURS, THEIRS = "ours", "theirs"


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish and clean without the usual waits."""
    monkeypatch.setattr(standbys, "_PUBLISH_INTERVAL", 0.0)
    monkeypatch.setattr(standbys, "_CLEAN_INTERVAL", 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> KeyedBench:
    """A group's broker, with a folder for the store of the owner."""
    return KeyedBench(tmp_path / "theirs")


@pytest.fixture
def spare(bench: KeyedBench, tmp_path: Path) -> KeyedBench:
    """The same group on the machine of the standby."""
    return bench.on_machine(tmp_path / "ours")


def owned_by(owner: str, *others: str) -> GroupTasks:
    """Return a group whose two tasks are one member's."""
    tasks = dict.fromkeys(range(2), owner)
    return GroupTasks(OURS, frozenset({OURS, THEIRS, *others}), tasks, tasks)


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until something holds."""
    assert wait_for(condition, Deadline.after(PATIENCE))


def lags(daemon: KeyedDaemon) -> dict[int, int | None]:
    """Return how far the copies of a member are behind."""
    reader = daemon.processor.state_reader()
    return {each.partition: each.progress.lag for each in reader.standbys()}


def row(daemon: KeyedDaemon, key: bytes, number: int = 0) -> bytes | None:
    """Return what the files of a member have of a key."""
    (found,) = daemon.store.get_many([PartitionKey(number, key)])
    return None if found is None else found.state


@contextmanager
def following(
    bench: KeyedBench, spare: KeyedBench, **state: Any
) -> Iterator[tuple[KeyedDaemon, KeyedDaemon]]:
    """Open an owner of which three facts are counted, and one with a copy of that."""
    with bench.daemon() as owner, spare.daemon(state={"standbys": 1, **state}) as standby:
        held = owner.assign(0)
        for _ in range(3):
            owner.send(held, b"a")
        standby.processor.on_rebalanced(owned_by(THEIRS))
        eventually(lambda: lags(standby) == {0: 0, 1: 0})
        yield owner, standby


def test_a_copy_is_kept_of_what_the_owner_commits(bench: KeyedBench, spare: KeyedBench) -> None:
    """Rows that the owner commits come to the store of the standby, with their position."""
    with following(bench, spare) as (owner, standby):
        assert row(standby, b"a") == b"3"
        held = owner.assign(1)
        owner.send(held, b"b")
        eventually(lambda: row(standby, b"b", 1) == b"1")
        position = standby.store.position(1)
        assert position is not None
        assert (position.topic_id, position.offset) == (owner_topic(owner), 1)


def owner_topic(owner: KeyedDaemon) -> str:
    """Return the id of the changelog."""
    return owner.processor.opened.topics.changelog.topic_id


def test_a_copy_answers_no_query(bench: KeyedBench, spare: KeyedBench) -> None:
    """The standby shows neither keys nor partitions as its own, and folds nothing of them."""
    with following(bench, spare) as (_, standby):
        reader = standby.processor.state_reader()
        assert (reader.partitions(), reader.find(b"a")) == ([], [])
        assert reader.page(b"", None, 10, None) == []
        assert not standby.state.is_ready(0)


def test_no_copy_is_kept_without_standbys(bench: KeyedBench, spare: KeyedBench) -> None:
    """A member of a group without standbys reads no changelog of others."""
    with bench.daemon() as owner, spare.daemon() as other:
        held = owner.assign(0)
        owner.send(held, b"a")
        other.processor.on_rebalanced(owned_by(THEIRS))
        own = other.assign(1)
        other.send(own, b"b")
        assert (lags(other), row(other, b"a")) == ({}, None)


def test_a_standby_takes_over_from_where_its_copy_is(bench: KeyedBench, spare: KeyedBench) -> None:
    """The restore of a partition whose copy is at the end reads nothing, and counting goes on."""
    with following(bench, spare) as (_, standby):
        with capture_logs() as logs:
            standby.processor.on_rebalanced(owned_by(OURS))
            held = standby.assign(0)
        assert not [each for each in logs if each["event"] == "restore_started"]
        standby.send(held, b"a")
        assert (standby.counted(0, b"a"), row(standby, b"a")) == (4, b"4")
        eventually(lambda: lags(standby) == {})


def test_a_task_that_is_given_up_is_followed_from_where_it_was(
    bench: KeyedBench, spare: KeyedBench
) -> None:
    """An owner that becomes the standby reads what the next one commits, after its own rows."""
    with spare.daemon(state={"standbys": 1}) as first, bench.daemon() as second:
        held = first.assign(0)
        first.send(held, b"a")
        first.processor.on_stream_termination(held)
        with capture_logs() as logs:
            first.processor.on_rebalanced(owned_by(THEIRS))
            taken = second.assign(0)
            second.send(taken, b"a")
            eventually(lambda: row(first, b"a") == b"2")
        starts = {e["partition"]: e["start"] for e in logs if e["event"] == "standby_started"}
        assert starts[0] == 1


def test_a_task_that_was_ours_for_a_moment_is_followed_again(
    bench: KeyedBench, spare: KeyedBench
) -> None:
    """A copy that was left for a claim is kept on, also where no look at the group saw that."""
    with following(bench, spare) as (_, standby):
        restores = standby.processor.opened.restores
        with capture_logs() as logs:
            restores.restorer.begin(FakeAssignment(TopicPartition(INPUT, 0)), 1)
            eventually(lambda: [each for each in logs if each["event"] == "standby_started"])
        bench.written_by_another(0, b"a", b"9")
        eventually(lambda: row(standby, b"a") == b"9")


def test_a_copy_is_deleted_once_others_keep_it(bench: KeyedBench, spare: KeyedBench) -> None:
    """Rows stay for a while after another member became the standby, and are deleted then."""
    with following(bench, spare, cleanup="1h") as (owner, standby):
        others = [f"other-{number}" for number in range(40)]
        standby.processor.on_rebalanced(owned_by(THEIRS, *others))
        eventually(lambda: lags(standby) == {})
        assert row(standby, b"a") == b"3"
        soon = configured(state={"standbys": 1, "cleanup": "0.01s"})
        standby.processor.on_reconfigured(soon)
        eventually(lambda: not standby.store.has_any(0))
        assert row(owner, b"a") == b"3"


def test_a_copy_of_another_topic_is_begun_again(bench: KeyedBench, spare: KeyedBench) -> None:
    """Rows of a changelog that was deleted and created again are dropped, not gone on with."""
    with spare.daemon(state={"standbys": 1}) as standby:
        standby.store.note({0: Position("former", 0, SYSTEM_CLOCK.time())})
        bench.broker.produce(*changed(0, b"a", b"7"))
        with capture_logs() as logs:
            standby.processor.on_rebalanced(owned_by(THEIRS))
            eventually(lambda: row(standby, b"a") == b"7")
        (dropped,) = [each for each in logs if each["event"] == "local_state_dropped"]
        assert "another topic of the same name" in dropped["reason"]


def changed(number: int, key: bytes, value: bytes) -> tuple[Any, FakeRecord]:
    """Return a row of a changelog partition, with the partition."""
    return TopicPartition(CHANGELOG, number), FakeRecord(key_=key, value_=value)


def test_tasks_that_are_near_to_their_end_are_published(
    bench: KeyedBench, spare: KeyedBench
) -> None:
    """The group is told which tasks are warm, and that one is not any more once it is held."""
    with following(bench, spare, acceptable_lag=0) as (_, standby):
        eventually(lambda: standby.warm and standby.warm[-1] == {0, 1})
        standby.processor.on_rebalanced(owned_by(OURS))
        standby.assign(0)
        standby.assign(1)
        eventually(lambda: standby.warm[-1] == frozenset())


def test_tasks_to_come_are_followed_as_many_at_a_time_as_may_be(
    bench: KeyedBench, spare: KeyedBench
) -> None:
    """Without standbys a member follows the tasks that are to move to it, at most so many."""
    with bench.daemon(), spare.daemon(state={"max_warmups": 1}) as coming:
        owners, goal = dict.fromkeys(range(2), THEIRS), dict.fromkeys(range(2), OURS)
        members = frozenset({OURS, THEIRS})
        coming.processor.on_rebalanced(GroupTasks(OURS, members, owners, goal))
        eventually(lambda: lags(coming) == {0: 0})
        coming.processor.on_rebalanced(GroupTasks(OURS, members, {0: OURS, 1: THEIRS}, goal))
        eventually(lambda: lags(coming) == {1: 0})
