"""A member that stands still, and one whose nodes somebody else deletes or rewrites."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.ports import StoredOffset
from tests.brokers import stored_offset
from tests.integration.channel.rig import CHANNEL, Group, Notes, eventually
from tests.integration.channel.test_group import member
from tests.integration.seen import log_in, metric
from tests.metrics import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.kafka.ports import OffsetStore
    from headrace.zookeeper.session import ZooKeeperSession
    from tests.integration.seen import Log


@contextmanager
def offsets_of(group: Group, offsets: object) -> Iterator[OffsetStore]:
    """Read the group's offsets where a channel with that setting keeps them."""
    with group.zookeeper() as session:
        if offsets == "zookeeper":
            yield ZooKeeperOffsetStore(session, group.name)
            return
        store = KafkaOffsetStore({"bootstrap.servers": group.broker.address}, group.name)
        yield store
        store.close()


class History:
    """The stored offsets of some partitions, one entry for each time they were asked for."""

    def __init__(self, store: OffsetStore, group: Group, numbers: tuple[int, ...]) -> None:
        self._store = store
        self._partitions = [group.partition(number) for number in numbers]
        self._seen: list[tuple[StoredOffset, ...]] = []

    def are(self, offset: int, *epochs: int) -> bool:
        """Ask, and say whether every partition has that offset, under one of the epochs."""
        found = [stored_offset(self._store, partition) for partition in self._partitions]
        stored = tuple(each for each in found if each is not None)
        self._seen.append(stored)
        wanted = [each.offset == offset and each.epoch in epochs for each in stored]
        return len(stored) == len(self._partitions) and all(wanted)

    def went_back(self) -> bool:
        """Whether an offset or its epoch was ever lower than before."""
        columns = list(zip(*[stored for stored in self._seen if stored], strict=True))
        steps = [pair for column in columns for pair in pairwise(column)]
        return any(b.offset < a.offset or b.epoch < a.epoch for a, b in steps)


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param("kafka", id="metadata", marks=pytest.mark.slow),
        pytest.param({"fencing": "transactions"}, id="transactions"),
        pytest.param("zookeeper", id="zookeeper", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_stood_still_does_nothing_under_its_old_claims(
    make_group: Callable[..., Group], zookeeper_hosts: str, log: Log, offsets: object
) -> None:
    """Stopped with batches out, beyond its session, it commits none of them when it goes on.

    Its late answers come while another member owns the partitions and is further on. It joins
    anew, and everything is delivered.
    """
    group, numbers = make_group(zookeeper_hosts, 2, session_timeout=3), (0, 1)
    group.produce(10, *numbers)
    notes = Notes()
    with (
        member(group, "still", "--hold", offsets=offsets) as (process, events),
        offsets_of(group, offsets) as store,
    ):
        assert process.stdin is not None
        history = History(store, group, numbers)
        told = _until_two_batches(events)
        process.send_signal(signal.SIGSTOP)
        process.stdin.write("answer\n")
        process.stdin.flush()
        with group.running(notes, "awake", offsets=offsets) as controller:
            eventually(lambda: history.are(10, 2))
            group.produce(10, *numbers, start=10)
            eventually(lambda: history.are(20, 2))
            process.send_signal(signal.SIGCONT)
            notes.wait(lambda: len(notes.assigned) == 1)
            eventually(lambda: history.are(20, 2, 3) and not history.are(20, 2))
            group.produce(10, *numbers, start=20)
            eventually(lambda: history.are(30, 2, 3))
            stale = controller.metrics.foreign_commits.labels(CHANNEL, group.topic, "stale")
            repaired = value_of(stale)
        process.stdin.close()
        told += events
    if offsets != "kafka" or not repaired:
        assert not history.went_back()
    _did_no_harm(told, numbers)
    _lost_and_joined_anew(log_in(group.directory / "still.log"), log, group, numbers)
    assert all(notes.records[group.partition(n)][:20] == list(range(20)) for n in numbers)
    assert set(notes.values.values()) == {1}


def _until_two_batches(
    events: Iterator[tuple[str, int, int, int]],
) -> list[tuple[str, int, int, int]]:
    told: list[tuple[str, int, int, int]] = []
    while [what for what, *_ in told].count("batch") < 2:
        told.append(next(events))
    return told


def _lost_and_joined_anew(still: Log, log: Log, group: Group, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        where = {"topic": group.topic, "partition": number}
        log.expect("partition_claimed", epoch=2, clean_end=False, **where)
        still.expect("claim_lost", channel="main", epoch=1, **where)
    assert len(still.of("member_joined")) == 2


def _did_no_harm(told: list[tuple[str, int, int, int]], numbers: tuple[int, ...]) -> None:
    """Check that what was out was answered late, lost and never stored; one partition came back."""
    came_back = []
    for number in numbers:
        own = [(what, epoch, offset) for what, other, epoch, offset in told if other == number]
        first, then = own[:4], own[4:]
        assert [what for what, *_ in first] == ["assigned", "batch", "late", "lost"]
        assert {epoch for _, epoch, _ in first} == {1}
        if then:
            came_back.append(number)
            assert then[0] == ("assigned", 3, 20)
            assert {epoch for _, epoch, _ in then} == {3}
            assert min(offset for what, _, offset in then if what == "batch") > 20
    assert len(came_back) == 1


def _delete_owner(session: ZooKeeperSession, group: Group) -> None:
    session.delete(group.paths.owner(group.partition()))


def _rewrite_owner(session: ZooKeeperSession, group: Group) -> None:
    session.set(group.paths.owner(group.partition()), b"scribble")


def _delete_epoch(session: ZooKeeperSession, group: Group) -> None:
    session.delete(group.paths.epoch(group.partition()))


def _rewrite_epoch(session: ZooKeeperSession, group: Group) -> None:
    session.set(group.paths.epoch(group.partition()), b"scribble")


def _delete_member(session: ZooKeeperSession, group: Group) -> None:
    session.delete(group.paths.member("a"))


#: By what was done: why the claim was lost, and what else is logged before the next one begins.
_HARM: dict[Callable[[ZooKeeperSession, Group], None], tuple[str, list[str]]] = {
    _delete_owner: ("node_changed", []),
    _rewrite_owner: ("node_changed", ["owner_node_unusable"]),
    _delete_epoch: ("node_changed", ["epoch_raised"]),
    _rewrite_epoch: ("node_changed", ["epoch_node_unusable"]),
    _delete_member: ("membership_lost", ["membership_lost", "member_joined"]),
}


@pytest.mark.parametrize("harm", _HARM, ids=lambda harm: harm.__name__)
def test_harmed_nodes_cost_the_claim_and_no_record(
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    log: Log,
    harm: Callable[[ZooKeeperSession, Group], None],
) -> None:
    """The claim is lost and claimed anew under a higher epoch, from what was committed."""
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    with group.running(notes) as controller, group.zookeeper() as session:
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        harm(session, group)
        notes.wait(lambda: "lost" in notes.callbacks[group.partition()])
        group.produce(10, start=10)
        eventually(lambda: group.offsets() == [20])
        (stored,) = group.stored()
    assert stored is not None
    assert stored.epoch > 1
    assert notes.epochs[group.partition()][-1] == stored.epoch
    assert notes.records[group.partition()] == list(range(20))
    reason, events = _HARM[harm]
    log.expect("claim_lost", channel=CHANNEL, topic=group.topic, epoch=1, reason=reason)
    assert metric(controller, "claims_lost_total", reason=reason) == 1
    for event in events:
        log.expect(event)
