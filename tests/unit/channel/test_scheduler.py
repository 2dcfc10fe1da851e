"""The ready queue and the due-time heap."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace.channel.partition import RunningCallback
from headrace.channel.pauses import Pause, PauseReason
from headrace.channel.scheduler import Scheduler
from headrace.channel.states import EndReason, PartitionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pauses import DeliveryGate
    from headrace.testing.channel import FakeClock


def test_partitions_come_in_the_order_in_which_they_became_ready(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """One that is given back goes behind the others: round robin."""
    scheduler = Scheduler(clock)
    first, second, third = own(0), own(1), own(2)
    for owned in (first, second, third):
        scheduler.touch(owned)
    taken = scheduler.take(0)
    assert taken is first
    scheduler.give_back(first, first.hold.holder)
    assert [scheduler.take(0) for _ in range(4)] == [second, third, first, None]


def test_a_partition_that_is_to_rest_or_to_end_goes_before_the_others(
    clock: FakeClock, delivery_gate: DeliveryGate, own: Callable[..., OwnedPartition]
) -> None:
    """A waiting caller makes the short turn urgent, also for a partition that was queued before."""
    scheduler = Scheduler(clock)
    first, second, third, fourth = own(0), own(1), own(2), own(3)
    for owned in (first, second, third):
        scheduler.touch(owned)
    third.life.end(EndReason.RELEASE)
    scheduler.touch(third)
    delivery_gate.pauses.add(Pause(PauseReason.OPERATOR, "me", 0.0, partition=fourth.partition))
    scheduler.touch(fourth)
    assert [scheduler.take(0) for _ in range(4)] == [fourth, third, first, second]


def test_a_partition_is_never_handed_to_two_workers(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """Touching a held partition does not queue it; it is looked at again when given back."""
    scheduler = Scheduler(clock)
    owned = own()
    scheduler.touch(owned)
    assert scheduler.take(0) is owned
    scheduler.touch(owned)
    assert scheduler.take(0) is None
    scheduler.give_back(owned, owned.hold.holder)
    assert scheduler.take(0) is owned


def test_a_partition_due_later_comes_when_its_time_has_come(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """Back-off and linger hold a partition back until the clock says so."""
    scheduler = Scheduler(clock)
    owned = own()
    owned.retries.not_before = clock.monotonic() + 5
    scheduler.touch(owned)
    assert scheduler.take(0) is None
    clock.advance(5)
    assert scheduler.take(0) is owned


def test_an_earlier_due_time_replaces_a_later_one(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """A touch that finds the partition due sooner does not wait for the old time."""
    scheduler = Scheduler(clock)
    owned = own()
    owned.retries.not_before = clock.monotonic() + 60
    scheduler.touch(owned)
    owned.life.end(EndReason.LOST)
    scheduler.touch(owned)
    assert scheduler.take(0) is owned


def test_a_final_partition_is_forgotten(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """After its end nothing hands it out again."""
    scheduler = Scheduler(clock)
    owned = own()
    scheduler.touch(owned)
    assert scheduler.take(0) is owned
    owned.life.become(PartitionState.LOST)
    scheduler.give_back(owned, owned.hold.holder)
    scheduler.touch(owned)
    assert scheduler.take(0) is None


def test_a_seized_partition_goes_to_another_worker(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """The hung holder's late give_back changes nothing for the new one."""
    scheduler = Scheduler(clock)
    owned = own()
    scheduler.touch(owned)
    scheduler.take(0)
    hung = owned.hold.holder
    owned.hold.callback = RunningCallback(5.0, get_ident())
    assert scheduler.seize(owned, owned.hold.callback)
    assert owned.life.ending is EndReason.ABANDONED
    assert scheduler.take(0) is owned
    scheduler.give_back(owned, hung)
    assert scheduler.take(0) is None


def test_a_claim_waits_for_the_end_of_the_one_before_it(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """Callbacks of two claims on one partition never overlap."""
    scheduler = Scheduler(clock)
    before, after = own(), own()
    after.life.await_end_of(before.life)
    scheduler.touch(after)
    assert scheduler.take(0) is None
    before.life.become(PartitionState.LOST)
    scheduler.touch(after)
    assert scheduler.take(0) is after


def test_a_closed_scheduler_lets_its_workers_go(clock: FakeClock) -> None:
    """Take returns None at once after close."""
    scheduler = Scheduler(clock)
    scheduler.close()
    assert scheduler.take(60) is None
