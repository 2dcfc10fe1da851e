from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import BatchCancelledError, PoisonRecordError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.keyed import Fired, Output, at_clock
from headrace.processors.task_merge import MergeRules
from tests.unit.processors.keyed_bench import (
    INPUT,
    LATER,
    OTHER,
    OTHER_ID,
    PATIENCE,
    KeyedBench,
    _identity,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST = 1_700_000_000_000


def listing(key: str, state: str | None, facts: list[Any], now: int) -> Any:
    """Append what the facts say; one that is bad fails, and one that waits has a timer fire."""
    del key
    if isinstance(facts[0], Fired):
        return f"{state},fired", [Output("fired")], {}
    said = [fact.value for fact in facts]
    if "bad" in said:
        raise ValueError("bad")
    timers = {"t": at_clock(now + LATER)} if "later" in said else {}
    return ",".join([*([] if state is None else [state]), *said]), [], timers


@pytest.fixture
def tasks(tmp_path: Path) -> KeyedBench:
    """Return a group that works on partitions of two topics together, the later name first."""
    return KeyedBench(tmp_path, MergeRules((OTHER, INPUT), 1.0), listing)


def test_a_partition_rests_until_its_task_is_whole(tasks: KeyedBench) -> None:
    """It says what it waits for; with the last partition of a task the state is restored."""
    with tasks.daemon() as daemon:
        held = daemon.assign(0, wait=False)
        assert daemon.rests.notes == ["it waits for other-0"]
        early = daemon.hand_out(held, b"k", {b"x": FIRST})
        assert early.result(0).request.value == "revert"
        daemon.assign_other(0)
        daemon.rests.wait_for_none()
        assert daemon.state.is_ready(0)


def test_a_task_rests_when_one_of_its_partitions_ends(tasks: KeyedBench) -> None:
    """Batches of the other one are withdrawn; it says what it waits for until that is back."""
    with tasks.daemon() as daemon:
        held, other = daemon.assign(0, wait=False), daemon.assign_other(0)
        daemon.rests.wait_for_none()
        waits = daemon.hand_out(held, b"k", {b"x": FIRST})
        assert not waits.done()
        daemon.processor.on_partition_lost(other)
        assert isinstance(waits.exception(PATIENCE), BatchCancelledError)
        assert daemon.rests.notes[-1] == "it waits for other-0"
        assert daemon.rests.resting == {0}
        assert not daemon.state.is_ready(0)
        daemon.assign_other(0)
        daemon.rests.wait_for_none()
        assert daemon.state.is_ready(0)


def test_facts_of_a_task_are_reduced_in_the_order_of_their_times(tasks: KeyedBench) -> None:
    """Whichever topic comes first; of equal times the topic that is configured first."""
    with tasks.daemon() as daemon:
        held, other = daemon.assign(0, wait=False), daemon.assign_other(0)
        daemon.rests.wait_for_none()
        one = daemon.hand_out(held, b"k", {b"a": FIRST, b"b": FIRST + 2, b"c": FIRST + 4})
        two = daemon.hand_out(other, b"k", {b"d": FIRST, b"e": FIRST + 3, b"f": FIRST + 9})
        one.result(PATIENCE)
        assert not two.done()
        assert daemon.stored("k") == "d,a,b,e,c"
        assert tasks.stored[_identity(0, OTHER_ID)].offset == 2
        three = daemon.hand_out(held, b"k", {b"g": FIRST + 9, b"h": FIRST + 10})
        two.result(PATIENCE)
        assert daemon.stored("k") == "d,a,b,e,c,f"
        assert not three.done()


def test_a_fact_that_fails_is_to_blame_and_its_task_is_delivered_again(tasks: KeyedBench) -> None:
    """The other topic's batch has no failure, and another task goes on."""
    with tasks.daemon() as daemon:
        held, other = daemon.assign(0, wait=False), daemon.assign_other(0)
        daemon.rests.wait_for_none()
        one = daemon.hand_out(held, b"k", {b"a": FIRST, b"bad": FIRST + 2})
        two = daemon.hand_out(other, b"k", {b"d": FIRST + 1, b"e": FIRST + 3})
        error = two.exception(PATIENCE)
        assert isinstance(error, BatchCancelledError)
        failure = one.exception(PATIENCE)
        assert isinstance(failure, PoisonRecordError)
        assert (failure.partition, failure.offset) == (TopicPartition(INPUT, 0), 1)
        assert tasks.stored == {}


def test_a_task_begins_with_the_offsets_of_all_its_topics(tasks: KeyedBench) -> None:
    """A process that comes later has both, with one number of commits, whichever starts last."""
    with tasks.daemon() as daemon:
        held, other = daemon.assign(0, wait=False), daemon.assign_other(0)
        daemon.rests.wait_for_none()
        one = daemon.hand_out(held, b"k", {b"a": FIRST, b"b": FIRST + 5})
        daemon.hand_out(other, b"k", {b"c": FIRST + 1, b"d": FIRST + 9})
        one.result(PATIENCE)
        offsets = daemon.state.progress(0).offsets
    assert offsets == {_identity(0): 2, _identity(0, OTHER_ID): 1}
    with tasks.daemon() as daemon:
        daemon.assign(0, wait=False)
        daemon.assign_other(0)
        daemon.rests.wait_for_none()
        found = daemon.state.progress(0)
        assert (found.offsets, found.number, found.time) == (offsets, 1, FIRST + 5)


def test_a_tick_moves_all_topics_of_a_task(tasks: KeyedBench) -> None:
    """A timer that is due without records is committed with the offsets of both."""
    with tasks.daemon() as daemon:
        held, other = daemon.assign(0, wait=False), daemon.assign_other(0)
        daemon.rests.wait_for_none()
        one = daemon.hand_out(held, b"k", {b"later": FIRST})
        daemon.hand_out(other, b"k", {b"x": FIRST + 1})
        one.result(PATIENCE)
        assert wait_for(
            lambda: (daemon.stored("k") or "").endswith("fired"), Deadline.after(PATIENCE)
        )
        assert daemon.member.outputs == [(b"k", b"fired")]
        numbers = {each.commits for each in tasks.stored.values()}
        assert len(tasks.stored) == 2
        assert numbers == {2}
