from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.claims import LossReason
from headrace.coordinators.member import MemberState
from headrace.coordinators.members import MemberInfo, Mode
from headrace.errors import InstanceInUseError
from tests.unit.coordinators.group import INFO, PATHS, TOPIC, Group, partition, state_of

if TYPE_CHECKING:
    from headrace.coordinators.claims import Claim
    from headrace.coordinators.registry import GroupView


@pytest.fixture
def group() -> Group:
    """Eight partitions and nobody yet."""
    return Group()


def test_a_lone_member_claims_everything_once_the_group_has_settled(group: Group) -> None:
    """Nothing is claimed before the rebalance delay has passed, and then all of it."""
    a = group.join("a")
    group.run(0.4)
    assert a.held == []
    group.run(1)
    assert a.held == list(range(8))
    assert set(group.epochs().values()) == {1}


def test_a_second_member_gets_half_and_sees_clean_ends(group: Group) -> None:
    """On a join the fewest partitions move, with their epoch raised and their end noted."""
    a = group.join("a")
    group.run()
    b = group.join("b")
    group.run()
    assert len(a.held) == len(b.held) == 4
    assert len(a.channel.asked) == 4
    assert {claim.epoch for claim in b.channel.held.values()} == {2}
    assert all(c.previous and c.previous.clean_end for c in b.channel.held.values())
    assert not a.channel.lost


def test_members_that_start_together_collide_nowhere(group: Group) -> None:
    """Three members at once share eight partitions without giving any back."""
    members = [group.join(name) for name in "abc"]
    group.run()
    assert sorted(len(m.held) for m in members) == [2, 3, 3]
    assert all(not m.channel.asked for m in members)


def test_a_member_that_stops_hands_over(group: Group) -> None:
    """Whoever drains gives everything back cleanly, and the others take it over."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.member.drain()
    group.run()
    assert a.held == []
    assert a.member.claims == ()
    assert a.member.leave() == ()
    assert b.held == list(range(8))
    moved = [c for c in b.channel.held.values() if c.epoch == 2]
    assert len(moved) == 4
    assert all(c.previous and c.previous.clean_end for c in moved)


def test_a_drained_member_can_take_part_again(group: Group) -> None:
    """After a drain the member stays in the group and gets its share when it wants it."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.member.drain()
    group.run()
    assert state_of(a) is MemberState.ACTIVE
    a.member.undrain()
    group.run()
    assert len(a.held) == len(b.held) == 4


def test_a_crashed_members_partitions_are_taken_over_uncleanly(group: Group) -> None:
    """The survivor has everything, with raised epochs and knowing that it has to fence."""
    a, b = group.join("a"), group.join("b")
    group.run()
    had = a.held
    group.crash(a)
    group.run()
    assert b.held == list(range(8))
    for number in had:
        claim = b.channel.held[partition(number)]
        assert claim.epoch == 2
        assert claim.previous is not None
        assert (claim.previous.member, claim.previous.clean_end) == ("a", False)


def test_the_lease_of_a_living_member_never_ends(group: Group) -> None:
    """Heartbeats every third of a session keep the lease above half of it."""
    a = group.join("a")
    group.run()
    lease = a.channel.held[partition(0)].lease
    for _ in range(60):
        group.run(0.5)
        assert lease.remaining() > 3
    assert not a.channel.lost


def test_a_short_suspension_costs_nothing(group: Group) -> None:
    """With the same session and an unbroken lease the claims go on as they were."""
    a = group.join("a")
    group.run()
    before = dict(a.channel.held)
    a.session.suspend()
    group.run(2)
    assert state_of(a) is MemberState.SUSPENDED
    a.session.resume()
    group.run(1)
    assert a.channel.calls[-2:] == ["suspended", "resumed"]
    assert a.channel.held == before
    assert not a.channel.lost


def test_a_lease_that_ends_takes_the_claims_though_the_session_lives(group: Group) -> None:
    """After a long suspension the same session claims again, with new epochs."""
    a = group.join("a")
    group.run()
    a.session.suspend()
    group.run(6)
    assert a.held == []
    assert {reason for _, reason in a.channel.lost} == {LossReason.LEASE_OVER}
    a.session.resume()
    group.run()
    assert a.held == list(range(8))
    assert set(group.epochs().values()) == {2}


def test_a_new_session_loses_everything_and_begins_again(group: Group) -> None:
    """After an expiry all claims are lost, the member joins anew and claims with new epochs."""
    a = group.join("a")
    group.run()
    a.session.expire()
    group.run()
    assert {reason for _, reason in a.channel.lost} == {LossReason.SESSION_LOST}
    assert set(group.epochs().values()) == {2}
    assert a.held == list(range(8))


def test_an_expiry_during_a_suspension_is_noticed_on_return(group: Group) -> None:
    """Another member takes over meanwhile; the one that returns gets its share later."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.session.suspend()
    group.run(1)
    a.session.expire()
    group.run(7)
    assert a.held == []
    assert b.held == list(range(8))
    a.session.resume()
    group.run()
    assert len(a.held) == len(b.held) == 4


def test_a_process_that_stood_still_does_nothing_with_its_old_claims(group: Group) -> None:
    """Stopped for longer than its session, a member has no valid lease from its first moment."""
    a, b = group.join("a"), group.join("b")
    group.run()
    old = dict(a.channel.held)
    a.stopped = True
    group.run(6)
    a.session.expire()
    group.run(3)
    assert b.held == list(range(8))
    assert not any(claim.lease.valid() for claim in old.values())
    a.stopped = False
    group.run()
    assert {claim for claim, _ in a.channel.lost} == set(old.values())
    assert len(a.held) == len(b.held) == 4


def test_a_silent_server_suspends_before_the_client_notices(group: Group) -> None:
    """A heartbeat without an answer suspends; the next one with an answer resumes."""
    a = group.join("a")
    group.run()
    a.session.lose_answers(1)
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


def test_a_late_claim_does_not_survive_beside_another_members(group: Group) -> None:
    """When the late request executes, whoever comes second is refused or cleared away."""
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


def test_an_epoch_node_rewritten_by_hand_is_found_by_the_safety_poll(group: Group) -> None:
    """A claim that could no longer write anything is lost and claimed anew, without an event."""
    a = group.join("a")
    group.run()
    group.zookeeper.put(PATHS.epoch(partition(2)), b"{}")
    group.run(31)
    assert [(c.partition.partition, r) for c, r in a.channel.lost] == [(2, LossReason.NODE_CHANGED)]
    assert group.epochs()[2] == 2


def test_a_settled_group_is_left_in_peace(group: Group) -> None:
    """Without events the group is read at the safety poll only."""
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
    """What the channel says of a lost claim changes nothing about its successor."""
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


def test_a_live_holder_of_the_name_is_not_waited_for(group: Group) -> None:
    """A second process with the same name fails, naming the holder, and disturbs nothing."""
    first = group.join("a")
    group.run()
    second = group.join("a")
    group.run(4)
    assert state_of(second) is MemberState.FAILED
    assert isinstance(second.channel.error, InstanceInUseError)
    assert "from process" in str(second.channel.error)
    assert first.held == list(range(8))
    assert not first.channel.lost


def test_the_end_of_our_own_former_session_is_waited_for(group: Group) -> None:
    """After a crash without state directory the member joins when the old session is over."""
    first = group.join("a")
    group.run()
    first.stopped = True
    first.channel.held.clear()
    second = group.join("a")
    group.run(5)
    assert state_of(second) is MemberState.JOINING
    first.session.expire()
    group.run()
    assert second.held == list(range(8))


def test_a_name_that_is_never_freed_fails(group: Group) -> None:
    """A holder that shows no life but does not go is not waited for for ever."""
    first = group.join("a")
    group.run()
    first.stopped = True
    first.channel.held.clear()
    second = group.join("a")
    group.run(13)
    assert state_of(second) is MemberState.FAILED


def test_what_is_not_given_back_in_time_is_lost_and_freed(group: Group) -> None:
    """Leaving with claims in work ends them without a clean end, and names them."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.channel.gives_back = False
    a.member.drain()
    group.run(1)
    had = a.held
    late = a.member.leave()
    assert sorted(c.partition.partition for c in late) == had
    assert {reason for _, reason in a.channel.lost} == {LossReason.STOPPED}
    assert not any(claim.lease.valid() for claim in late)
    group.run()
    assert b.held == list(range(8))
    assert all(
        c.previous and not c.previous.clean_end
        for p, c in b.channel.held.items()
        if p.partition in had
    )


def test_leaving_without_zookeeper_ends_all_the_same(group: Group) -> None:
    """Without an answer the nodes are left to the session's end."""
    a = group.join("a")
    group.run()
    a.session.suspend()
    assert len(a.member.leave()) == 8
    assert state_of(a) is MemberState.LEFT


def test_a_slow_member_holds_up_nobody_else(group: Group) -> None:
    """While one member does not give back, the others have what they can have."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.channel.gives_back = False
    c = group.join("c")
    group.run()
    assert len(b.held) + len(c.held) + len(a.held) == 8
    assert len(c.held) >= 1
    assert len(a.channel.asked) >= 1
    for claim in a.channel.asked:
        a.channel.release(claim)
    group.run()
    assert sorted(len(m.held) for m in (a, b, c)) == [2, 3, 3]


def test_added_partitions_are_claimed(group: Group) -> None:
    """More partitions are shared like the others, and nothing else moves."""
    a, b = group.join("a"), group.join("b")
    group.run()
    group.grow(12)
    group.run()
    assert len(a.held) == len(b.held) == 6
    assert not a.channel.asked
    assert not b.channel.asked


def test_a_topic_that_is_gone_is_given_back(group: Group) -> None:
    """Partitions that no longer exist are released in order, not lost."""
    a = group.join("a")
    group.run()
    group.grow(6)
    group.run()
    a.member.set_partitions({})
    group.run()
    assert a.held == []
    assert len(a.channel.asked) == 8
    assert not a.channel.lost
    assert a.registry.owners(TOPIC) == {}


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
    a.turn()
    a.registry.raise_epoch = raised  # type: ignore[method-assign]
    group.run()
    assert len(a.channel.raised) == 1
    assert {reason for _, reason in a.channel.lost} == {LossReason.LEASE_OVER}
    assert a.held == list(range(8))


def test_members_can_publish_other_wishes(group: Group) -> None:
    """A new weight takes effect without anybody leaving."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.member.update(replace(INFO, weight=3))
    group.run()
    assert (len(a.held), len(b.held)) == (6, 2)
    assert len(b.channel.asked) == 2


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


def test_static_members_are_told_of_their_conflict(group: Group) -> None:
    """The contended partition stays with its first owner, and both hear of it."""
    lists = {TOPIC: (0, 1, 2)}
    a = group.join("a", MemberInfo(INFO.topics, Mode.STATIC, lists=lists))
    group.run()
    b = group.join("b", MemberInfo(INFO.topics, Mode.STATIC, lists={TOPIC: (2, 3, 11)}))
    group.run()
    assert (a.held, b.held) == ([0, 1, 2], [3])
    assert b.channel.summary is not None
    assert b.channel.summary.contended == {partition(2): ("a", "b")}
    assert b.channel.summary.missing == {"b": (partition(11),)}
    assert b.channel.summary.unowned == {partition(n) for n in (4, 5, 6, 7)}


def test_fixed_count_members_leave_the_rest_unowned(group: Group) -> None:
    """Each has its number, and what is left is reported."""
    info = MemberInfo(INFO.topics, Mode.FIXED_COUNT, partitions_per_topic=3)
    a, b = group.join("a", info), group.join("b", info)
    group.run()
    assert len(a.held) == len(b.held) == 3
    assert a.channel.summary is not None
    assert len(a.channel.summary.unowned) == 2


def test_unreadable_nodes_harm_nobody(group: Group) -> None:
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


def test_the_summary_says_what_is_on_the_way(group: Group) -> None:
    """Partitions that are to be claimed are pending, and then owned."""
    a = group.join("a")
    group.run(0.3)
    assert a.channel.summary is not None
    assert len(a.channel.summary.pending) == 8
    group.run()
    assert not a.channel.summary.pending
    assert set(a.channel.summary.owners.values()) == {"a"}
