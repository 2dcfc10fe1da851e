"""A member that stands still, and one whose nodes somebody else deletes or rewrites."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.kafka.ports import StoredOffset
from tests.integration.channel.rig import Group, Notes, eventually
from tests.integration.channel.test_group import member

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.zookeeper.session import ZooKeeperSession


def test_a_process_that_stood_still_does_nothing_under_its_old_claims(
    make_group: Callable[..., Group], zookeeper_hosts: str
) -> None:
    """Stopped beyond its session, it delivers nothing that the next owner has when it goes on."""
    group, numbers = make_group(zookeeper_hosts, 2), (0, 1)
    group.produce(10, *numbers)
    notes = Notes()
    with member(group, "still") as (process, events):
        eventually(lambda: group.stored(*numbers) == [StoredOffset(10, 1)] * 2)
        process.send_signal(signal.SIGSTOP)
        with group.running(notes, "awake"):
            group.produce(10, *numbers, start=10)
            eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 2)] * 2)
            process.send_signal(signal.SIGCONT)
            notes.wait(lambda: len(notes.assigned) == 1)
            eventually(lambda: 3 in [s.epoch for s in group.stored(*numbers) if s is not None])
            group.produce(10, *numbers, start=20)
            eventually(lambda: group.offsets(*numbers) == [30, 30])
        assert process.stdin is not None
        process.stdin.close()
        told = list(events)
    positions: dict[int, int] = {}
    for what, number, epoch, offset in told:
        if what == "assigned":
            assert (epoch, offset) == ((1, 0) if number not in positions else (3, 20))
            positions[number] = offset
        if what == "batch":
            assert offset > positions[number]
            positions[number] = offset
            assert offset <= 10 if epoch == 1 else offset > 20
    for number in numbers:
        assert notes.records[group.partition(number)][:10] == list(range(10, 20))
    assert set(notes.values.values()) == {1}


def _delete_owner(session: ZooKeeperSession, group: Group) -> None:
    session.delete(group.paths.owner(group.partition()))


def _delete_epoch(session: ZooKeeperSession, group: Group) -> None:
    session.delete(group.paths.epoch(group.partition()))


def _rewrite_epoch(session: ZooKeeperSession, group: Group) -> None:
    session.set(group.paths.epoch(group.partition()), b"scribble")


def _delete_member(session: ZooKeeperSession, group: Group) -> None:
    session.delete(group.paths.member("a"))


@pytest.mark.parametrize(
    "harm", [_delete_owner, _delete_epoch, _rewrite_epoch, _delete_member], ids=lambda f: f.__name__
)
def test_nodes_that_somebody_harms_cost_the_claim_and_no_record(
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    harm: Callable[[ZooKeeperSession, Group], None],
) -> None:
    """The claim is lost and claimed anew under a higher epoch, from what was committed."""
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    with group.running(notes), group.zookeeper() as session, capture_logs() as logs:
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        harm(session, group)
        notes.wait(lambda: notes.callbacks[group.partition()][-1] == "lost")
        group.produce(10, start=10)
        eventually(lambda: group.offsets() == [20])
        (stored,) = group.stored()
    assert stored is not None
    assert stored.epoch > 1
    assert notes.epochs[group.partition()][-1] == stored.epoch
    assert notes.records[group.partition()] == list(range(20))
    assert "partition_lost" in [event["event"] for event in logs]
