"""Back-pressure: who is paused, resumed or asked to give records back."""

from __future__ import annotations

from headrace.channel.fetcher import BufferSnapshot, Decision, decide, leeway
from headrace.core.records import TopicPartition

A, B, C = (TopicPartition("events", number) for number in range(3))
BUDGET = 300


def reading(
    partition: TopicPartition, held: int, *, hungry: bool = False, paused: bool = False
) -> BufferSnapshot:
    """Return a reading."""
    return BufferSnapshot(partition, held, hungry, paused)


def test_below_the_budget_everything_is_fetched() -> None:
    """With room for all partitions none is paused."""
    assert decide([reading(A, 40), reading(B, 40), reading(C, 0)], BUDGET) == Decision(fetch=True)


def test_one_partition_may_use_the_room_of_others_that_want_nothing() -> None:
    """A partition over its share goes on while no other one is hungry."""
    assert decide([reading(A, 250), reading(B, 0), reading(C, 0)], BUDGET) == Decision(fetch=True)


def test_a_full_budget_without_a_hungry_partition_stops_fetching() -> None:
    """Stopping keeps prefetched records, so no partition is paused."""
    readings = [reading(A, 100), reading(B, 100), reading(C, 100)]
    assert decide(readings, BUDGET) == Decision(fetch=False)


def test_a_partition_over_its_share_is_paused_for_a_hungry_one() -> None:
    """The one that holds its share is paused, and the hungry one is fetched."""
    readings = [reading(A, 140), reading(B, 0, hungry=True), reading(C, 20)]
    assert decide(readings, BUDGET) == Decision(fetch=True, pause=frozenset({A}))


def test_no_partition_is_paused_while_there_is_room() -> None:
    """Pausing drops prefetched records, and the hungry partition is fetched with the others."""
    readings = [reading(A, 120), reading(B, 0, hungry=True), reading(C, 20)]
    assert decide(readings, BUDGET) == Decision(fetch=True)


def test_a_full_budget_makes_the_large_give_back_to_the_hungry() -> None:
    """The hungry partition is fetched even when another had filled the whole budget."""
    readings = [reading(A, 310, paused=True), reading(B, 0, hungry=True), reading(C, 0)]
    assert decide(readings, BUDGET) == Decision(fetch=True, shed=frozenset({A}))


def test_a_paused_partition_is_resumed_well_below_its_share() -> None:
    """Resuming waits for half of the share, so that pausing does not flap."""
    assert decide([reading(A, 49, paused=True), reading(B, 0), reading(C, 0)], BUDGET) == Decision(
        fetch=True, resume=frozenset({A})
    )
    assert decide([reading(A, 51, paused=True), reading(B, 0), reading(C, 0)], BUDGET) == Decision(
        fetch=True
    )


def test_without_partitions_the_client_is_still_served() -> None:
    """An empty assignment fetches, which lets the client run."""
    assert decide([], BUDGET) == Decision(fetch=True)


def test_flow_is_next_decided_at_half_of_the_budget() -> None:
    """A paused partition may have to be resumed before that."""
    readings = [reading(A, 40), reading(B, 20, hungry=True)]
    assert leeway(readings, BUDGET) == 90
    assert leeway([*readings, reading(C, 200)], BUDGET) == 0
    assert leeway([*readings, reading(C, 0, paused=True)], BUDGET) == 0
