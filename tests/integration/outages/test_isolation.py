"""A member that no longer reaches ZooKeeper while Kafka and the other member go on."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pytest

from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from tests.integration.channel.rig import Group, Notes, channel_of, eventually
from tests.integration.outages.cable import Cable
from tests.integration.seen import metric, suspended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.controller.controller import KafkaController
    from headrace.core.records import Batch
    from tests.integration.outages.ensemble import Ensemble
    from tests.integration.seen import Log

pytestmark = pytest.mark.slow


class Fault(Protocol):
    """A fault that parts a member from ZooKeeper."""

    def cut(self) -> None:
        """Part them."""

    def mend(self) -> None:
        """Join them."""


@pytest.fixture
def cable(ensemble: Ensemble) -> Iterator[Cable]:
    """The cable of a member to the first server."""
    cable = Cable(ensemble.servers[0].port)
    yield cable
    cable.close()


@contextmanager
def isolated_site(
    fault: str, ensemble: Ensemble, cable: Cable, group: Group
) -> Iterator[tuple[Group, Fault]]:
    """Give the group as the isolated member sees it, and the fault; undo the fault at the end."""
    what: Fault = cable if fault == "member" else ensemble
    hosts = cable.address if fault == "member" else ensemble.servers[0].address
    theirs = replace(group, zookeeper_hosts=hosts)
    try:
        yield theirs, what
    finally:
        what.mend()
        ensemble.whole()
        theirs.close()


@pytest.mark.parametrize("fault", ["member", "follower"])
def test_an_isolated_member_stops_before_the_other_begins(
    ensemble: Ensemble, cable: Cable, make_group: Callable[..., Group], log: Log, fault: str
) -> None:
    """Cut off with or without its server: each record comes once, under the right epoch.

    What is produced after the suspension is delivered by the other member alone, and the isolated
    one takes part again under a higher epoch once it is heard.
    """
    group, numbers = make_group(ensemble.main_hosts, 2, session_timeout=6), (0, 1)
    alone, other = Notes(), Notes()
    with isolated_site(fault, ensemble, cable, group) as (theirs, what):
        group.produce(10, *numbers)
        with theirs.running(alone, "alone") as isolated:
            eventually(lambda: group.stored(*numbers) == [StoredOffset(10, 1)] * 2)
            what.cut()
            alone.wait(lambda: _all_told(alone, "CoordinationSuspendedError"))
            log.says("coordination_suspended")
            told = {"topic": group.topic, "error": "CoordinationSuspendedError"}
            assert metric(isolated, "processor_errors_total", **told) == 2
            group.produce(10, *numbers, start=10)
            with group.running(other, "other"):
                eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 2)] * 2)
                _taken_over(log, group, numbers)
                alone.wait(lambda: _all_told(alone, "lost"))
                assert alone.values.total() == 20
                assert not alone.assigned
                what.mend()
                alone.wait(lambda: len(alone.assigned) == 1)
                other.wait(lambda: len(other.assigned) == 1)
                group.produce(10, *numbers, start=20)
                eventually(lambda: group.offsets(*numbers) == [30, 30])
                log.says("coordination_restarted")
                assert len(log.of("member_joined")) == 3
                assert metric(isolated, "claims_lost_total", reason="lease_over") == 2
    (back,) = (p for p, epochs in alone.epochs.items() if len(epochs) > 1)
    assert alone.epochs[back] == [1, 3]
    assert list(other.epochs.values()) == [[2], [2]]
    _delivered_once(alone, other, 60)


def _taken_over(log: Log, group: Group, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        where = {"topic": group.topic, "partition": number}
        log.expect("claim_lost", channel="main", reason="lease_over", epoch=1, **where)
        log.expect("partition_claimed", epoch=2, clean_end=False, **where)


def test_an_answer_that_comes_after_the_lease_moves_no_offset(
    ensemble: Ensemble, cable: Cable, make_group: Callable[..., Group], log: Log
) -> None:
    """A batch that was out when the lease ended is the next owner's, and its answer is ignored."""
    group = make_group(ensemble.main_hosts, session_timeout=6)
    out: list[Future[BatchResponse]] = []

    def promise(_: Batch) -> Future[BatchResponse]:
        out.append(Future())
        return out[-1]

    alone, other = Notes(promise), Notes()
    with isolated_site("member", ensemble, cable, group) as (theirs, what):
        group.produce(5)
        with theirs.running(alone, "alone"):
            alone.wait_values(1)
            what.cut()
            with group.running(other, "other"):
                other.wait_values(5)
                group.produce(5, start=5)
                eventually(lambda: group.stored() == [StoredOffset(10, 2)])
                alone.wait(lambda: _all_told(alone, "lost"))
                for future in out:
                    if not future.cancelled():
                        future.set_result(BatchResponse.advance())
                what.mend()
                group.produce(5, start=10)
                eventually(lambda: group.stored() == [StoredOffset(15, 2)])
            alone.wait(lambda: bool(alone.assigned))
    log.expect("claim_lost", channel="main", reason="lease_over", epoch=1)
    assert other.records[group.partition()] == list(range(15))
    in_vain = alone.records[group.partition()]
    assert in_vain == list(range(len(in_vain)))
    assert alone.epochs[group.partition()] == [1, 3]
    assert "processed" not in alone.callbacks[group.partition()]


def test_a_loss_shorter_than_the_session_costs_nothing(
    ensemble: Ensemble, cable: Cable, make_group: Callable[..., Group], log: Log
) -> None:
    """Delivery rests meanwhile; then work goes on under the same epoch without a repeat."""
    group = make_group(ensemble.hosts, 2, session_timeout=30)
    numbers = (0, 1)
    notes = Notes()
    with isolated_site("member", ensemble, cable, group) as (theirs, _):
        group.produce(10, *numbers)
        with theirs.running(notes, "alone") as controller:
            eventually(lambda: group.offsets(*numbers) == [10, 10])
            cable.break_off()
            notes.wait(lambda: _all_told(notes, "CoordinationSuspendedError"))
            group.produce(10, *numbers, start=10)
            # the records are there to be delivered
            eventually(lambda: _ends(controller) == [20, 20])
            assert suspended(controller) == 2
            assert metric(controller, "coordination_suspended") == 1
            log.says("coordination_suspended")
            assert notes.values.total() == 20
            cable.mend()
            eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 1)] * 2)
            assert suspended(controller) == 0
            assert metric(controller, "coordination_suspended") == 0
            log.says("coordination_resumed")
    for calls in notes.callbacks.values():
        assert "lost" not in calls
    assert list(notes.epochs.values()) == [[1], [1]]
    _delivered_once(notes, Notes(), 40)


def test_a_killed_leader_of_the_ensemble_costs_nothing(
    ensemble: Ensemble, make_group: Callable[..., Group], log: Log
) -> None:
    """Another server leads, the sessions live on, and no partition moves and no record repeats."""
    group, numbers = make_group(ensemble.hosts, 2, session_timeout=30), (0, 1)
    first, second = Notes(), Notes()
    with group.running(first, "a"), group.running(second, "b"):
        first.wait(lambda: len(first.assigned) == 1)
        second.wait(lambda: len(second.assigned) == 1)
        before = group.stored(*numbers)
        leader = ensemble.leader()
        leader.kill()
        group.produce(20, *numbers)
        eventually(lambda: group.offsets(*numbers) == [20, 20])
        leader.start()
        ensemble.whole()
        group.produce(20, *numbers, start=20)
        eventually(lambda: group.offsets(*numbers) == [40, 40])
        after = group.stored(*numbers)
    log.says("coordination_suspended", "coordination_resumed")
    assert [s and s.epoch for s in before] == [s and s.epoch for s in after]
    for calls in (*first.callbacks.values(), *second.callbacks.values()):
        assert "lost" not in calls
    _delivered_once(first, second, 80)


def _ends(controller: KafkaController) -> list[int | None]:
    """Return the end of each partition as the member's fetcher knows it."""
    return [reading.high_watermark for reading in channel_of(controller).partitions()]


def _all_told(notes: Notes, what: str) -> bool:
    """Whether the processor heard of something for every partition it ever had."""
    calls = [notes.callbacks[p] for p in list(notes.epochs)]
    return bool(calls) and all(what in each for each in calls)


def _delivered_once(first: Notes, second: Notes, count: int) -> None:
    both = first.values + second.values
    assert len(both) == count
    assert set(both.values()) == {1}
