from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.claims import LossReason
from headrace.coordinators.member_info import MemberState
from headrace.coordinators.znodes import OwnerDocument
from tests.unit.coordinators.group import INFO, PATHS, Group, partition, state_of

if TYPE_CHECKING:
    from headrace.coordinators.claims import Claim
    from headrace.coordinators.registry import GroupView

#: What a hand may write into the owner node of another's claim.
SCRIBBLES = {
    "no document": b"?",
    "another member": OwnerDocument("z", 7, 1, "elsewhere", 0.0).encode(),
    "another epoch": OwnerDocument("a", 7, 9, "elsewhere", 0.0).encode(),
}


def test_a_silent_server_suspends_before_the_client_notices(group: Group) -> None:
    """A heartbeat without an answer suspends; the next one with an answer resumes."""
    a = group.join("a")
    group.run()
    a.session.lose_answers(1)
    group.run(4)
    assert a.channel.calls[-2:] == ["suspended", "resumed"]
    assert len(a.held) == 8
    assert not a.channel.lost


def test_a_reconnect_that_grants_less_counts_without_an_answered_heartbeat(group: Group) -> None:
    """The servers count from the reconnect, and another member may claim after that."""
    a = group.join("a")
    group.run()
    lease = a.channel.held[partition(0)].lease
    a.session.suspend()
    group.zookeeper.session_timeout = 1.0
    a.session.resume()
    a.session.lose_answers(1000)
    assert lease.remaining() > 2
    group.run(0.05)
    assert 0 < lease.remaining() <= 0.9
    group.run(1)
    assert {reason for _, reason in a.channel.lost} == {LossReason.LEASE_OVER}
    assert a.held == []


def test_a_connection_that_breaks_during_a_look_costs_no_claim(group: Group) -> None:
    """The member is suspended and resumes with all it had: what it read was its own."""
    a = group.join("a")
    group.run()
    a.session.suspend_after_reading(2)
    group.zookeeper.put(PATHS.ids, b"")
    group.run(1)
    a.session.resume()
    group.run(4)
    assert a.channel.calls[-2:] == ["suspended", "resumed"]
    assert len(a.held) == 8
    assert not a.channel.lost


@pytest.mark.parametrize("delay", [False, True], ids=["executed", "executed later"])
def test_a_claim_of_unknown_outcome_ends_in_one_claim(group: Group, *, delay: bool) -> None:
    """An owner node that no claim stands for is deleted, and the partition claimed properly."""
    a = group.join("a")
    group.run(0.5)
    a.session.lose_answers(1, delay=delay)
    group.run(1)
    a.session.deliver_late()
    group.run(31)
    assert a.held == list(range(8))
    assert a.registry.verify(a.channel.held.values()) == []


def test_a_late_claim_does_not_survive_another_member_s(group: Group) -> None:
    """The second of two claims is refused or removed when the late request executes."""
    a = group.join("a")
    group.run(0.5)
    a.session.lose_answers(1, delay=True)
    group.run(0.1)
    b = group.join("b")
    group.run(3)
    a.session.deliver_late()
    group.run(31)
    assert len(a.held) == len(b.held) == 4
    assert a.registry.verify(a.channel.held.values()) == []
    assert b.registry.verify(b.channel.held.values()) == []


def test_an_owner_node_deleted_by_hand_ends_the_claim(group: Group) -> None:
    """The claim is lost, and the partition is claimed again with a new epoch."""
    a = group.join("a")
    group.run()
    group.zookeeper.remove(PATHS.owner(partition(3)))
    group.run()
    assert [(c.partition.partition, r) for c, r in a.channel.lost] == [(3, LossReason.NODE_CHANGED)]
    assert group.epochs()[3] == 2


@pytest.mark.parametrize("data", SCRIBBLES.values(), ids=SCRIBBLES.keys())
def test_an_owner_node_rewritten_by_hand_is_claimed_again(group: Group, data: bytes) -> None:
    """The claim that did not write it is lost, the node cleared, the epoch raised."""
    a, b = group.join("a"), group.join("b")
    group.run()
    owner = a if 3 in a.held else b
    group.zookeeper.put(PATHS.owner(partition(3)), data)
    group.run(31)
    assert [(c.partition.partition, r) for c, r in owner.channel.lost] == [
        (3, LossReason.NODE_CHANGED)
    ]
    assert group.epochs()[3] == 2
    assert sorted(a.held + b.held) == list(range(8))


def test_an_owner_node_rewritten_during_a_suspension_ends_the_claim(group: Group) -> None:
    """Verification finds it before the channel goes on."""
    a = group.join("a")
    group.run()
    a.session.suspend()
    group.run(1)
    group.zookeeper.put(PATHS.owner(partition(2)), b"?")
    a.session.resume()
    group.run(0.2)
    suspended = a.channel.calls.index("suspended")
    assert a.channel.calls[suspended : suspended + 3] == ["suspended", "claim_lost", "resumed"]
    group.run()
    assert group.epochs()[2] == 2


def test_a_claim_that_was_overtaken_during_a_suspension_is_lost_before_resuming(
    group: Group,
) -> None:
    """An epoch node that moved on is found by verification, before the channel goes on."""
    a = group.join("a")
    group.run()
    a.session.suspend()
    group.run(1)
    group.zookeeper.put(PATHS.epoch(partition(2)), b"{}")
    a.session.resume()
    group.run(0.2)
    suspended = a.channel.calls.index("suspended")
    assert a.channel.calls[suspended : suspended + 3] == ["suspended", "claim_lost", "resumed"]
    assert a.channel.lost[0][0].partition == partition(2)


def test_an_epoch_node_rewritten_by_hand_is_found_by_the_resync(group: Group) -> None:
    """A claim that could no longer write anything is lost and claimed anew, without an event."""
    a = group.join("a")
    group.run()
    group.zookeeper.put(PATHS.epoch(partition(2)), b"{}")
    group.run(31)
    assert [(c.partition.partition, r) for c, r in a.channel.lost] == [(2, LossReason.NODE_CHANGED)]
    assert group.epochs()[2] == 2


def test_a_settled_group_is_left_in_peace(group: Group) -> None:
    """Without events the group is read at the resync only."""
    a, b = group.join("a"), group.join("b")
    group.run()
    reads = 0
    read = a.registry.members

    def counted() -> GroupView:
        nonlocal reads
        reads += 1
        return read()

    a.registry.members = counted  # type: ignore[method-assign]
    group.run(91, step=0.1)
    assert reads == 3
    assert len(b.held) == 4


def test_a_member_node_deleted_by_hand_means_joining_again(group: Group) -> None:
    """Everything is lost, owner nodes of the former stay are cleared, and all is claimed anew."""
    a = group.join("a")
    group.run()
    group.zookeeper.remove(PATHS.member("a"))
    group.run(6)
    assert {reason for _, reason in a.channel.lost} == {LossReason.MEMBERSHIP_LOST}
    assert a.held == list(range(8))
    assert set(group.epochs().values()) == {2}


def test_an_abandoned_partition_is_tried_again_after_a_while(group: Group) -> None:
    """A partition the channel cannot begin with is free at once, and left alone for a time."""
    a = group.join("a")
    group.run()
    claim = a.channel.held.pop(partition(5))
    a.member.abandoned(claim)
    group.run(5)
    assert 5 not in a.held
    assert group.zookeeper.node(PATHS.owner(partition(5))) is None
    group.run(6)
    assert 5 in a.held
    again = a.channel.held[partition(5)]
    assert again.previous is not None
    assert not again.previous.clean_end


def test_an_abandoned_partition_goes_to_another_member(group: Group) -> None:
    """The member that could not work on it tells the others, and one claims it at once."""
    a, b = group.join("a"), group.join("b")
    group.run()
    number = a.held[-1]
    a.member.abandoned(a.channel.held.pop(partition(number)))
    group.run(1)
    assert number in b.held
    assert group.epochs()[number] == 2
    group.run(30)
    assert len(a.held) == len(b.held) == 4


def test_a_raised_epoch_is_answered_and_the_old_claim_still_understood(group: Group) -> None:
    """The channel hears the new claim; a release that crosses it on the way is accepted."""
    a = group.join("a")
    group.run()
    old = a.channel.held[partition(1)]
    a.member.raise_epoch(old, 50)
    group.run(0.1)
    assert [(o.epoch, n.epoch) for o, n in a.channel.raised] == [(1, 50)]
    del a.channel.held[partition(1)]
    a.member.released(old, clean=True)
    group.run()
    assert group.epochs()[1] == 51


def test_raising_goes_on_after_a_suspension(group: Group) -> None:
    """A raise whose answer was lost is asked for again, and answered once."""
    a = group.join("a")
    group.run()
    a.session.lose_answers(1)
    a.member.raise_epoch(a.channel.held[partition(1)], 50)
    group.run(4)
    assert [(o.epoch, n.epoch) for o, n in a.channel.raised] == [(1, 50)]
    assert not a.channel.lost


def test_releasing_goes_on_after_a_suspension(group: Group) -> None:
    """A release whose answer was lost is repeated, and its clean end stands."""
    a = group.join("a")
    group.run()
    a.session.lose_answers(1)
    a.channel.release(a.channel.held[partition(1)])
    group.run(4)
    claim = a.channel.held[partition(1)]
    assert claim.epoch == 2
    assert claim.previous is not None
    assert claim.previous.clean_end


def test_commands_for_claims_that_ended_are_ignored(group: Group) -> None:
    """A command for a lost claim does not change its successor."""
    a = group.join("a")
    group.run()
    old = a.channel.held[partition(0)]
    a.session.expire()
    group.run()
    a.member.released(old, clean=True)
    a.member.abandoned(old)
    a.member.raise_epoch(old, 99)
    group.run()
    assert a.held == list(range(8))
    assert group.epochs()[0] == 2


def test_a_lease_that_ends_between_two_releases_loses_the_rest(group: Group) -> None:
    """While accounts are settled the lease may end: nothing is settled twice."""
    a = group.join("a")
    group.run()
    for number in range(8):
        a.member.raise_epoch(a.channel.held[partition(number)], 20)
    raised = a.registry.raise_epoch

    def slow(claim: Claim, at_least: int) -> Claim | None:
        group.clock.advance(7)
        return raised(claim, at_least)

    a.registry.raise_epoch = slow  # type: ignore[method-assign]
    a.run_once()
    a.registry.raise_epoch = raised  # type: ignore[method-assign]
    group.run()
    assert len(a.channel.raised) == 1
    assert {reason for _, reason in a.channel.lost} == {LossReason.LEASE_OVER}
    assert a.held == list(range(8))


def test_wishes_that_could_not_be_published_are_published_later(group: Group) -> None:
    """A change during an outage is not lost."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.session.suspend()
    a.member.update(replace(INFO, weight=3))
    group.run(1)
    a.session.resume()
    group.run()
    assert (len(a.held), len(b.held)) == (6, 2)


def test_unreadable_nodes_harm_no_member(group: Group) -> None:
    """Scribbled member and owner nodes are reported, and everything else goes on."""
    group.zookeeper.put(PATHS.member("x"), b"scribble")
    group.zookeeper.put(PATHS.owner(partition(0)), b"scribble")
    a = group.join("a")
    group.run()
    assert a.held == list(range(1, 8))
    assert a.channel.summary is not None
    assert a.channel.summary.foreign.keys() == {partition(0)}
    assert a.channel.summary.problems.keys() == {"x"}


def test_a_closed_session_ends_the_member(group: Group) -> None:
    """When the servers refuse the client for good, the member fails and says so."""
    a = group.join("a")
    group.run()
    a.session.close()
    group.run(0.2)
    assert state_of(a) is MemberState.FAILED
    assert {reason for _, reason in a.channel.lost} == {LossReason.FAILED}
    assert a.channel.error is not None
