"""The contract of every registry for claims, whatever keeps its nodes."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.claims import Claim, ClaimRefusal, Release
from headrace.coordinators.errors import MembershipLostError
from headrace.coordinators.lease import Lease
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.records import TopicPartition
from headrace.zookeeper.errors import ZooKeeperUnavailableError
from tests.contracts.members import INFO, P0, P1, PATHS, PRODUCER, MembersContract, joined

if TYPE_CHECKING:
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from tests.contracts.members import World


class RegistryContract(MembersContract):
    """Subclasses provide the fixture ``world``."""

    def test_a_claim_is_seen_by_all_and_ours_to_one(self, world: World) -> None:
        """A claimed partition has an owner, which is ours to the claimer only."""
        a, b = joined(world, "a"), joined(world, "b")
        claim = claimed(a, P0)
        assert (claim.epoch, claim.member, claim.previous) == (1, "a", None)
        assert [(o.member, o.epoch, o.ours) for o in a.owners(P0.topic).values()] == [
            ("a", 1, True)
        ]
        assert [(o.member, o.epoch, o.ours) for o in b.owners(P0.topic).values()] == [
            ("a", 1, False)
        ]

    def test_an_owned_partition_cannot_be_claimed(self, world: World) -> None:
        """The second claim is refused, and the epoch stays as it is."""
        a, b = joined(world, "a"), joined(world, "b")
        claim = claimed(a, P0)
        assert b.claim([P0], lease())[P0] is ClaimRefusal.OWNED
        assert a.verify([claim]) == []

    def test_of_several_partitions_each_is_claimed_or_refused_by_itself(self, world: World) -> None:
        """One that is owned, one that is free and two that nobody ever had: three are claimed."""
        a, b = joined(world, "a"), joined(world, "b")
        claimed(a, P0)
        released(a, claimed(a, P1), clean=True)
        wanted = [P0, P1, TopicPartition(P0.topic, 2), TopicPartition("other", 0)]
        results = dict(b.claim(wanted, lease()))
        assert results.pop(P0) is ClaimRefusal.OWNED
        claims = [claim for claim in results.values() if isinstance(claim, Claim)]
        assert [(claim.partition, claim.epoch) for claim in claims] == [
            (partition, epoch) for partition, epoch in zip(wanted[1:], (2, 1, 1), strict=True)
        ]
        assert b.verify(claims) == []

    def test_of_several_claims_each_is_given_back_or_refused_by_itself(self, world: World) -> None:
        """Two that hold, one that somebody raised after us and one whose owner node is gone."""
        a = joined(world, "a")
        partitions = [TopicPartition(P0.topic, number) for number in range(4)]
        claims = [claimed(a, partition) for partition in partitions]
        assert a.raise_epoch(claims[1], 9) is not None
        world.hand.delete(PATHS.owner(partitions[2]))
        results = a.release(claims, clean=True)
        assert [p for p in partitions if results[p] is Release.REFUSED] == [partitions[1]]
        assert sorted(a.owners(P0.topic)) == [1]
        ends = [c.previous for c in a.claim(partitions, lease()).values() if isinstance(c, Claim)]
        assert [end is not None and end.clean_end for end in ends] == [True, True, True]
        assert a.release([], clean=True) == {}

    def test_the_next_owner_learns_of_a_clean_end(self, world: World) -> None:
        """After a clean release the next claim has a higher epoch and knows the end was clean."""
        a, b = joined(world, "a", transactional_prefix=PRODUCER + "a"), joined(world, "b")
        first = claimed(a, P0)
        assert released(a, first, clean=True) is Release.RELEASED
        second = claimed(b, P0)
        assert second.epoch == 2
        assert second.previous is not None
        assert second.previous.clean_end
        assert second.previous.member == "a"
        assert second.previous.member_epoch == first.member_epoch
        assert second.previous.transactional_id == f"{PRODUCER}a.{first.member_epoch}"
        assert second.unfenced == ()

    def test_the_next_owner_learns_of_an_abandoned_claim(self, world: World) -> None:
        """After a release without a clean end the next owner knows that it has to fence."""
        a, b = joined(world, "a"), joined(world, "b")
        assert released(a, claimed(a, P0), clean=False) is Release.RELEASED
        previous = claimed(b, P0).previous
        assert previous is not None
        assert not previous.clean_end

    def test_producers_are_handed_down_until_they_are_fenced(self, world: World) -> None:
        """Each claim names the producers of all former owners that nobody has shut out yet."""
        names = "abcd"
        a, b, c, d = (joined(world, name, transactional_prefix=PRODUCER + name) for name in names)
        first = claimed(a, P0)
        released(a, first, clean=False)
        second = claimed(b, P0)
        assert second.unfenced == (first.transactional_id,)
        released(b, second, clean=False)
        third = claimed(c, P0)
        assert third.unfenced == (first.transactional_id, second.transactional_id)
        raised = c.raise_epoch(third, 9)
        assert raised is not None
        assert raised.unfenced == third.unfenced
        released(c, raised, clean=True)
        fourth = claimed(d, P0)
        assert fourth.unfenced == third.unfenced, "a clean end shuts nobody else out"
        released(d, fourth.fenced(), clean=True)
        assert claimed(a, P0).unfenced == ()

    def test_a_member_does_not_have_to_fence_itself(self, world: World) -> None:
        """A member that claims anew what it lost in the same stay commits as before."""
        a = joined(world, "a", transactional_prefix=PRODUCER + "a")
        first = claimed(a, P0)
        released(a, first, clean=False)
        assert claimed(a, P0).unfenced == ()

    def test_a_session_takes_its_claims_along(self, world: World) -> None:
        """When a session ends, its partitions are free, and the end was not clean."""
        a, b = joined(world, "a"), joined(world, "b")
        claimed(a, P0)
        world.end_session(a)
        again = claimed(b, P0)
        assert again.epoch == 2
        assert again.previous is not None
        assert not again.previous.clean_end

    def test_a_zombie_is_refused(self, world: World) -> None:
        """A member whose partition was claimed again cannot release, raise or keep its claim."""
        a, b = joined(world, "a"), joined(world, "b")
        old = claimed(a, P0)
        world.hand.delete(PATHS.owner(P0))
        new = claimed(b, P0)
        assert released(a, old, clean=True) is Release.REFUSED
        assert released(a, old, clean=False) is Release.REFUSED
        assert a.raise_epoch(old, 9) is None
        assert a.verify([old]) == [old]
        assert b.verify([new]) == []
        assert b.owners(P0.topic)[0].ours

    def test_a_release_may_be_repeated(self, world: World) -> None:
        """A release whose answer was missed is not taken for somebody else's claim."""
        a = joined(world, "a")
        claim = claimed(a, P0)
        assert released(a, claim, clean=True) is Release.RELEASED
        assert released(a, claim, clean=True) is Release.RELEASED

    def test_the_end_is_noted_though_the_owner_node_is_gone(self, world: World) -> None:
        """A clean end counts also when somebody deleted the owner node."""
        a = joined(world, "a")
        claim = claimed(a, P0)
        world.hand.delete(PATHS.owner(P0))
        assert released(a, claim, clean=True) is Release.RELEASED
        previous = claimed(a, P0).previous
        assert previous is not None
        assert previous.clean_end

    def test_a_raised_epoch_holds_and_is_the_base_of_the_next(self, world: World) -> None:
        """Raising makes the claim's epoch what was asked for, for the owner node as well."""
        a, b = joined(world, "a"), joined(world, "b")
        claim = claimed(a, P0)
        raised = a.raise_epoch(claim, 41)
        assert raised is not None
        assert raised.epoch == 41
        assert a.owners(P0.topic)[0].epoch == 41
        assert a.verify([raised]) == []
        assert a.raise_epoch(claim, 41) == raised, "a missed answer may be asked for again"
        assert a.raise_epoch(raised, 7) == raised, "a higher epoch is left as it is"
        released(a, raised, clean=True)
        assert claimed(b, P0).epoch == 42

    def test_a_missing_or_rewritten_epoch_node_ends_a_claim(self, world: World) -> None:
        """Verification finds claims whose epoch node is gone or changed, and only those."""
        a = joined(world, "a")
        first, second = claimed(a, P0), claimed(a, P1)
        world.hand.set(PATHS.epoch(P0), b"{}")
        assert a.verify([first, second]) == [first]
        world.hand.delete(PATHS.epoch(P1))
        assert a.verify([first, second]) == [first, second]

    def test_an_unreadable_epoch_node_is_claimed_above_all_it_can_have_been(
        self, world: World
    ) -> None:
        """Scribbling in an epoch node does not bring an old epoch back."""
        a = joined(world, "a")
        for _ in range(3):
            released(a, claimed(a, P0), clean=True)
        world.hand.set(PATHS.epoch(P0), b"\xff not ours")
        claim = claimed(a, P0)
        assert claim.epoch > 3
        assert claim.previous is not None
        assert claim.previous.member is None
        assert not claim.previous.clean_end

    def test_an_epoch_node_of_a_later_version_is_left_alone(self, world: World) -> None:
        """A partition is not claimed if that would destroy its node by rewriting it."""
        a = joined(world, "a")
        released(a, claimed(a, P0), clean=True)
        later = json.dumps({"version": 2, "era": 5}).encode()
        world.hand.set(PATHS.epoch(P0), later)
        assert a.claim([P0], lease())[P0] is ClaimRefusal.FOREIGN
        assert world.hand.get(PATHS.epoch(P0)).data == later

    def test_unreadable_members_and_owners_are_reported_not_understood(self, world: World) -> None:
        """Bad documents are named and belong to nobody we know."""
        a = joined(world, "a")
        world.hand.create(PATHS.member("later"), b'{"version":2}', ephemeral=True)
        world.hand.create(PATHS.member("broken"), b"[]", ephemeral=True)
        assert a.owners(P0.topic) == {}
        world.hand.create(PATHS.owner(P0), b"", ephemeral=True)
        view = a.members()
        assert view.members == {"a": INFO}
        assert "format version 2" in view.problems["later"]
        assert "not a JSON object" in view.problems["broken"]
        owner = a.owners(P0.topic)[0]
        assert (owner.member, owner.ours) == (None, False)

    def test_our_name_with_another_session_is_not_ours(self, world: World) -> None:
        """An owner node counts as ours by its session, not by what stands in it."""
        a = joined(world, "a")
        released(a, claimed(a, P0), clean=True)
        document = b'{"version":1,"member":"a","member_epoch":1,"epoch":1,"host":"h","since":0}'
        world.hand.create(PATHS.owner(P0), document)
        assert not a.owners(P0.topic)[0].ours
        assert not a.discard(P0)

    def test_a_stray_owner_node_of_ours_can_be_discarded(self, world: World) -> None:
        """Discarding frees a partition that our session owns without knowing it."""
        a, b = joined(world, "a"), joined(world, "b")
        claimed(a, P0)
        assert not b.discard(P0)
        assert a.discard(P0)
        assert not a.discard(P0)
        assert claimed(b, P0).epoch == 2

    def test_the_others_are_called_when_an_owner_comes_or_goes(self, world: World) -> None:
        """Each change of a topic's owners calls those who read them before."""
        called = threading.Event()
        a, b = joined(world, "a"), joined(world, "b")
        a.watch(called.set)
        a.owners(P0.topic)
        claim = claimed(b, P0)
        assert called.wait(5)
        a.owners(P0.topic)
        called.clear()
        released(b, claim, clean=True)
        assert called.wait(5)

    def test_a_heartbeat_in_an_ended_session_claims_nothing(self, world: World) -> None:
        """A member whose session ended claims nothing."""
        a, b = joined(world, "a"), joined(world, "b")
        world.end_session(a)
        with pytest.raises((ZooKeeperUnavailableError, MembershipLostError)):
            a.heartbeat()
        assert b.owners(P0.topic) == {}

    def test_the_last_claimant_is_known_without_an_owner(self, world: World) -> None:
        """The last claimant's name stays, after its end too; of other nodes nothing is told."""
        a, b = joined(world, "a"), joined(world, "b")
        released(a, claimed(a, P0), clean=True)
        claimed(a, P1)
        world.end_session(a)
        assert b.former([P0, P1, TopicPartition("t.with.dots", 2)]) == {P0: "a", P1: "a"}
        world.hand.set(PATHS.epoch(P1), b"scribble")
        assert b.former([P0, P1]) == {P0: "a"}


def lease() -> Lease:
    """Return a lease that holds throughout a test."""
    return Lease(600, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic())


def claimed(registry: ZooKeeperRegistry, partition: TopicPartition) -> Claim:
    """Claim a partition that is expected to be free."""
    result = registry.claim([partition], lease())[partition]
    assert isinstance(result, Claim), result
    return result


def released(registry: ZooKeeperRegistry, claim: Claim, *, clean: bool) -> Release:
    """Give one claim back."""
    return registry.release([claim], clean=clean)[claim.partition]
