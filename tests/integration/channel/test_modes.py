"""Members that say themselves which or how many partitions they want, on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.kafka.ports import StoredOffset
from tests.integration.channel.rig import Group, Notes, eventually
from tests.integration.seen import metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.controller.controller import KafkaController
    from tests.integration.seen import Log

_PACE = {"rebalance_delay": "50ms", "resync_interval": "1s"}


def fixed(count: int) -> dict[str, Any]:
    """Return the coordinator of a member that wants so many partitions."""
    return {"type": "fixed_count", "partitions_per_topic": count, **_PACE}


def static(group: Group, *numbers: int) -> dict[str, Any]:
    """Return the coordinator of a member that wants these partitions."""
    return {"type": "static", "partitions": {group.topic: list(numbers)}, **_PACE}


def numbers_of(notes: Notes) -> set[int]:
    """Return what a member has."""
    return {partition.partition for partition in notes.assigned}


def wrong(controller: KafkaController) -> dict[str, float]:
    """Return by condition how many partitions a member's metrics complain of."""
    conditions = ("unowned", "pending", "contended", "missing", "foreign")
    counts = {each: metric(controller, "group_partitions", condition=each) for each in conditions}
    return {each: count for each, count in counts.items() if count}


def test_members_with_a_fixed_count_take_that_many_and_no_more(
    make_group: Callable[..., Group], log: Log
) -> None:
    """Each has two of five, one is named as unowned and not read, and nobody takes over.

    When the number of a member rises while it runs, it takes what is left.
    """
    group, numbers = make_group(5), range(5)
    first, second = Notes(), Notes()
    group.produce(10, *numbers)
    with group.running(first, "a", coordinator=fixed(2)) as a:
        with group.running(second, "b", coordinator=fixed(2)) as b:
            first.wait(lambda: len(first.assigned) == 2)
            second.wait(lambda: len(second.assigned) == 2)
            (left,) = set(numbers) - numbers_of(first) - numbers_of(second)
            eventually(lambda: wrong(a) == wrong(b) == {"unowned": 1})
            log.expect(
                "partitions_unowned", channel="main", partitions=[str(group.partition(left))]
            )
            read = [None if number == left else 10 for number in numbers]
            eventually(lambda: group.offsets(*numbers) == read)
        eventually(lambda: wrong(a) == {"unowned": 3})
        assert len(first.assigned) == 2
    assert {calls.count("assigned") for calls in first.callbacks.values()} == {1}
    both = first.values + second.values
    assert len(both) == 40
    assert set(both.values()) == {1}


def test_members_with_lists_take_the_listed_partitions(
    make_group: Callable[..., Group], log: Log
) -> None:
    """A partition in two lists stays where it is until its owner goes, and is named as contended.

    One that does not exist is named as missing, one that nobody lists as unowned.
    """
    group = make_group(4)
    first, second = Notes(), Notes()
    group.produce(10, 0, 1, 2, 3)
    with group.running(second, "b", coordinator=static(group, 1, 2, 9)) as b:
        second.wait(lambda: numbers_of(second) == {1, 2})
        log.expect("partitions_missing", channel="main", listed={"b": [str(group.partition(9))]})
        with group.running(first, "a", coordinator=static(group, 0, 1)) as a:
            first.wait(lambda: numbers_of(first) == {0})
            expected = {"unowned": 1, "contended": 1, "missing": 1}
            eventually(lambda: wrong(a) == wrong(b) == expected)
            contended = {str(group.partition(1)): ["a", "b"]}
            log.expect("partitions_contended", channel="main", members=contended)
            log.expect("partitions_unowned", channel="main", partitions=[str(group.partition(3))])
            eventually(lambda: group.offsets(0, 1, 2, 3) == [10, 10, 10, None])
            assert channel_stays(second, {1, 2})
    both = first.values + second.values
    assert len(both) == 30
    assert set(both.values()) == {1}


def channel_stays(notes: Notes, numbers: set[int]) -> bool:
    """Whether a member has these partitions, and never had to give one back."""
    return numbers_of(notes) == numbers and set(map(len, notes.epochs.values())) == {1}


def test_modes_may_be_mixed_and_are_named(make_group: Callable[..., Group], log: Log) -> None:
    """Lists are served first, then fixed numbers, and the dynamic member has the rest.

    When the member with the list leaves, the dynamic one takes over under the next epoch.
    """
    group, numbers = make_group(4), range(4)
    listing, counting, sharing = Notes(), Notes(), Notes()
    group.produce(10, *numbers)
    with (
        group.running(counting, "b", coordinator=fixed(1)) as b,
        group.running(sharing, "c") as c,
    ):
        with group.running(listing, "a", coordinator=static(group, 3)) as a:
            listing.wait(lambda: numbers_of(listing) == {3})
            sharing.wait(lambda: len(sharing.assigned) == 2)
            counting.wait(lambda: len(counting.assigned) == 1)
            modes = ["dynamic", "fixed_count", "static"]
            log.expect("modes_differ", channel="main", modes=modes)
            eventually(lambda: group.offsets(*numbers) == [10] * 4)
            eventually(lambda: wrong(a) == wrong(b) == wrong(c) == {})
            assert metric(c, "group_members") == 3
            (before,) = group.stored(3)
        sharing.wait(lambda: len(sharing.assigned) == 3)
        group.produce(10, *numbers, start=10)
        assert before is not None
        eventually(lambda: group.stored(3) == [StoredOffset(20, before.epoch + 1)])
        eventually(lambda: group.offsets(*numbers) == [20] * 4)
    both = listing.values + counting.values + sharing.values
    assert len(both) == 80
    assert set(both.values()) == {1}
