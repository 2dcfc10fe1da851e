"""Channels on real servers whose offsets somebody else writes, or that move to another store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.coordinators.znodes import EpochDocument, GroupPaths
from headrace.core.clock import Deadline
from headrace.kafka.fencing import fence_producers
from headrace.kafka.ports import StoredOffset
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.doubts import leave_in_doubt
from tests.integration.channel.rig import WAIT, Notes, eventually
from tests.metrics import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.zookeeper.protocol import Session
    from tests.integration.channel.rig import Group
    from tests.integration.seen import Log

TRANSACTIONS = {"fencing": "transactions"}


@pytest.fixture
def session(zookeeper_hosts: str) -> Iterator[Session]:
    """A session beside the members'."""
    session = ZooKeeperSession(ZooKeeperSettings(zookeeper_hosts))
    session.start()
    yield session
    session.close(Deadline.after(5))


@pytest.mark.parametrize("offsets", ["kafka", pytest.param(TRANSACTIONS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "metadata", ["", json.dumps({"version": 1, "epoch": 1, "member": "zombie"})]
)
def test_a_foreign_commit_is_replaced(group: Group, offsets: Any, metadata: str) -> None:
    """A commit of a zombie or of another program is replaced, though the channel is idle."""
    with group.running(Notes(), offsets=offsets):
        eventually(lambda: group.stored() == [StoredOffset(0, 1)])
    notes = Notes()
    with group.running(notes, offsets=offsets) as controller:
        group.produce(20)
        eventually(lambda: group.stored() == [StoredOffset(20, 2)])
        group.broker.commit(group.name, group.partition(), 3, metadata)
        eventually(lambda: group.stored() == [StoredOffset(20, 2)])
        found = "stale" if metadata else "foreign"
        labels = ("main", group.topic, found)
        eventually(lambda: value_of(controller.metrics.foreign_commits.labels(*labels)) >= 1)
    assert notes.records[group.partition()] == list(range(20))


def test_an_owner_yields_to_a_higher_epoch(group: Group, log: Log) -> None:
    """A commit of a later claim ends ours; the next claim is above it and goes on from there."""
    notes = Notes()
    with group.running(notes):
        group.produce(20)
        eventually(lambda: group.stored() == [StoredOffset(20, 1)])
        later = json.dumps({"version": 1, "epoch": 9, "member": "other"})
        group.broker.commit(group.name, group.partition(), 15, later)
        notes.wait(lambda: "lost" in notes.callbacks[group.partition()])
        eventually(lambda: group.stored() == [StoredOffset(20, 10)])
    log.expect("partition_superseded", channel="main", topic=group.topic, partition=0, epoch=1)
    assert notes.records[group.partition()] == [*range(20), *range(15, 20)]


def test_a_member_that_is_shut_out_joins_again(group: Group, session: Session) -> None:
    """The end of its producer costs a member the claims; the next ones go on where it was."""
    notes, path = Notes(), GroupPaths(group.name).epoch(group.partition())
    with group.running(notes, offsets=TRANSACTIONS):
        group.produce(20)
        eventually(lambda: group.stored() == [StoredOffset(20, 1)])
        before = EpochDocument.decode(path, session.get(path).data)
        assert before.transactional_id == f"headrace.{group.name}.a.{before.member_epoch}"
        properties = {"bootstrap.servers": group.broker.address}
        fence_producers(properties, [before.transactional_id], Deadline.after(WAIT))
        group.produce(20, start=20)
        eventually(lambda: group.stored() == [StoredOffset(40, 2)])
    after = EpochDocument.decode(path, session.get(path).data)
    assert after.member_epoch > before.member_epoch
    assert after.clean_end
    assert notes.callbacks[group.partition()].count("lost") == 1


def test_a_killed_member_s_producer_is_shut_out(group: Group, session: Session) -> None:
    """After an end that was not clean the next owner fences, and hands nothing down."""
    path = GroupPaths(group.name).epoch(group.partition())
    with group.running(Notes(), offsets=TRANSACTIONS):
        group.produce(20)
        eventually(lambda: group.stored() == [StoredOffset(20, 1)])
        former = EpochDocument.decode(path, session.get(path).data)
    session.set(path, former.encode())  # as a crash would have left it
    notes = Notes()
    with group.running(notes, "b", offsets=TRANSACTIONS):
        group.produce(20, start=20)
        eventually(lambda: group.stored() == [StoredOffset(40, 2)])
        present = EpochDocument.decode(path, session.get(path).data)
        assert present.unfenced == (former.transactional_id,)
    assert EpochDocument.decode(path, session.get(path).data).unfenced == ()
    assert notes.records[group.partition()] == list(range(20, 40))


@pytest.mark.slow
def test_an_offset_that_stays_in_doubt_is_cleared(
    group: Group, session: Session, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its former owner ended cleanly: as its producer's last transaction was decided."""
    monkeypatch.setattr("headrace.channel.start.READ_TIMEOUT", 2.0)
    path = GroupPaths(group.name).epoch(group.partition())
    with group.running(Notes(), offsets=TRANSACTIONS):
        group.produce(20)
        eventually(lambda: group.stored() == [StoredOffset(20, 1)])
    former = EpochDocument.decode(path, session.get(path).data)
    assert former.clean_end
    assert former.transactional_id is not None
    leave_in_doubt(group.broker.address, former.transactional_id, group.name, group.partition(), 25)
    notes = Notes()
    with group.running(notes, "b", offsets=TRANSACTIONS):
        group.produce(20, start=20)
        log.expect("start_offset_in_doubt", transactional_ids=[former.transactional_id])
        notes.wait_values(15)
        eventually(lambda: group.stored() == [StoredOffset(40, 2)])
    assert notes.records[group.partition()] == list(range(25, 40))
    assert EpochDocument.decode(path, session.get(path).data).unfenced == ()


def test_a_group_moves_to_zookeeper_and_back(group: Group, session: Session) -> None:
    """A group moves by its setting alone; nothing is missed, repeated or left behind."""
    nodes = ZooKeeperOffsetStore(session, group.name)
    partition, read = group.partition(), []
    kept: list[tuple[int | None, int | None]] = []
    for number, offsets in enumerate(("kafka", "zookeeper", TRANSACTIONS, "zookeeper")):
        notes = Notes()
        with group.running(notes, offsets=offsets):
            group.produce(10, start=10 * number)
            notes.wait_values(10)
        read += notes.records[partition]
        node = nodes.read(partition, Deadline.after(WAIT))
        kept.append((group.offsets()[0], None if node is None else node.offset))
    assert kept == [(10, None), (10, 20), (30, None), (30, 40)]
    assert read == list(range(40))
