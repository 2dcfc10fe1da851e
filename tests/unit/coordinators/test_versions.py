"""Members of two format versions in one group, as in a rolling upgrade that changes the format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headrace.coordinators import znodes
from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.coordinators.znodes import EpochDocument, OffsetDocument, OwnerDocument
from headrace.core.clock import Deadline
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import StoredOffset
from tests.unit.coordinators.group import INFO, PATHS, Group, Participant, partition

if TYPE_CHECKING:
    from headrace.testing import InMemorySession

LATER = znodes.FORMAT_VERSION + 1


class LaterParticipant(Participant):
    """A member that writes the next format, and reads this one as well."""

    def run_once(self) -> None:
        """Take one turn in the next format."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(znodes, "FORMAT_VERSION", LATER)
            super().run_once()

    def leave(self) -> None:
        """Leave the group in the next format."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(znodes, "FORMAT_VERSION", LATER)
            self.member.leave()


def join_later(group: Group, name: str) -> LaterParticipant:
    """Add a member of the next version."""
    participant = LaterParticipant(group, name, INFO)
    participant.member.rebalance.set_partitions(group.counts)
    group.participants.append(participant)
    return participant


def stop(group: Group, participant: Participant) -> None:
    """Stop a member in order, while the others go on."""
    participant.member.drain()
    group.run()
    assert participant.held == []
    if isinstance(participant, LaterParticipant):
        participant.leave()
    else:
        participant.member.leave()
    group.participants.remove(participant)
    participant.session.close()


def test_a_rolling_upgrade_with_a_change_of_format(group: Group) -> None:
    """One member after the other is replaced; every partition always has an owner, and only one.

    The members that are left of the former version keep working on what they have, because they
    do not see the new one; with the last of them everything goes over, cleanly.
    """
    a, b = group.join("a"), group.join("b")
    group.run()
    stop(group, b)
    later_b = join_later(group, "b")
    group.run()
    assert (a.held, later_b.held) == (list(range(8)), [])
    assert a.channel.summary is not None
    assert f"format version {LATER}" in a.channel.summary.problems["b"]
    stop(group, a)
    group.run()
    assert later_b.held == list(range(8))
    assert all(c.previous and c.previous.clean_end for c in later_b.channel.held.values())
    later_a = join_later(group, "a")
    group.run()
    assert (len(later_a.held), len(later_b.held)) == (4, 4)


class Stranger:
    """A member of the next version that owns some partitions, in a session of its own."""

    def __init__(self, group: Group, *numbers: int) -> None:
        self.session: InMemorySession = group.zookeeper.session()
        self.epochs = {number: _later(era=number) for number in numbers}
        for path in (PATHS.ids, PATHS.owners("orders"), PATHS.epochs("orders")):
            self.session.ensure(path)
        self.session.create(PATHS.member("later"), _later(share=0.5), ephemeral=True)
        for number, data in self.epochs.items():
            self.session.create(PATHS.epoch(partition(number)), data)
            self.session.create(PATHS.owner(partition(number)), _later(by="x"), ephemeral=True)

    def nodes(self) -> dict[int, bytes]:
        """Return what its epoch nodes hold now."""
        return {n: self.session.get(PATHS.epoch(partition(n))).data for n in self.epochs}


def _later(**fields: Any) -> bytes:
    return json.dumps({"version": LATER, **fields}).encode()


@pytest.fixture
def stranger(group: Group) -> Stranger:
    """A member of the next version that owns three of eight partitions."""
    return Stranger(group, 0, 1, 2)


def test_partitions_of_a_later_version_are_left_alone_and_reported(
    group: Group, stranger: Stranger
) -> None:
    """Our members share the rest, stay at work, and give the reason."""
    a, b = group.join("a"), group.join("b")
    before = stranger.nodes()
    group.run(60)
    assert sorted(a.held + b.held) == [3, 4, 5, 6, 7]
    assert stranger.nodes() == before
    for participant in (a, b):
        summary = participant.channel.summary
        assert summary is not None
        assert summary.foreign.keys() == {partition(n) for n in (0, 1, 2)}
        assert "upgrade this member" in summary.problems["later"]
        assert participant.channel.lost == []
        assert participant.channel.error is None


def test_nodes_of_a_later_version_are_taken_as_far_as_they_are_readable(group: Group) -> None:
    """An epoch node of our format is claimed above it; one of the next is not destroyed."""
    stranger = Stranger(group, 0, 1)
    epoch = EpochDocument(7, "later", 1, None, clean_end=False)
    stranger.session.create(PATHS.epoch(partition(2)), epoch.encode())
    owner = OwnerDocument("later", 1, 7, "h", 0)
    stranger.session.create(PATHS.owner(partition(2)), owner.encode(), ephemeral=True)
    a = group.join("a")
    group.run()
    assert a.held == [3, 4, 5, 6, 7]
    stranger.session.close()
    group.run(60)
    assert a.held == [2, 3, 4, 5, 6, 7]
    claim = a.channel.held[partition(2)]
    assert claim.epoch == 8
    assert claim.previous is not None
    assert not claim.previous.clean_end
    left = group.zookeeper.session()
    assert left.get(PATHS.epoch(partition(0))).data == stranger.epochs[0]
    assert a.channel.summary is not None
    assert a.channel.summary.pending == {partition(0), partition(1)}


def test_a_partition_is_claimed_once_its_format_is_ours_again(group: Group) -> None:
    """An operator who rolls back rewrites or deletes the epoch nodes, without a restart."""
    stranger = Stranger(group, 0, 1)
    a = group.join("a")
    group.run()
    stranger.session.close()
    group.run()
    assert a.held == [2, 3, 4, 5, 6, 7]
    group.zookeeper.remove(PATHS.epoch(partition(0)))
    document = EpochDocument(40, "later", 1, None, clean_end=False)
    group.zookeeper.put(PATHS.epoch(partition(1)), document.encode())
    group.run(15)
    assert a.held == list(range(8))
    assert group.epochs()[1] == 41


def test_keys_that_an_earlier_version_lacks_are_not_missed(group: Group) -> None:
    """Keys that were added within the format have a meaning when they are absent."""
    document = json.loads(EpochDocument(3, "old", 1, None, clean_end=True).encode())
    del document["unfenced"]
    path = PATHS.epoch(partition(0))
    group.zookeeper.put(path, json.dumps(document).encode())
    a = group.join("a")
    group.run()
    claim = a.channel.held[partition(0)]
    assert (claim.epoch, claim.unfenced) == (4, ())


def test_an_offset_node_of_a_later_version_is_refused_by_name(group: Group) -> None:
    """Going on from a guess could lose records: reading fails and says which node it is."""
    store = ZooKeeperOffsetStore(group.zookeeper.session(), "group", group.clock)
    group.zookeeper.put(PATHS.offset(partition(0)), _later(offset=5))
    group.zookeeper.put(PATHS.offset(partition(1)), OffsetDocument(9, 3, "a", 0).encode())
    deadline = Deadline.after(5, group.clock)
    with pytest.raises(OffsetStoreError, match=f"orders/0 .*format version {LATER}"):
        store.read(partition(0), deadline)
    assert store.read(partition(1), deadline) == StoredOffset(9, 3)
