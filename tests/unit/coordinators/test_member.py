from __future__ import annotations

from dataclasses import replace
from unittest.mock import MagicMock

from headrace.coordinators.claims import LossReason
from headrace.coordinators.member_info import (
    AssignmentMode,
    AssignmentState,
    MemberInfo,
    MemberState,
)
from headrace.coordinators.rebalance import ASSIGNMENT_LIMIT
from headrace.core.errors import StartError
from tests.unit.coordinators.group import (
    INFO,
    PATHS,
    SETTINGS,
    TOPIC,
    Group,
    assignment_of,
    partition,
    state_of,
)


def test_a_lone_member_claims_everything_once_the_group_has_settled(group: Group) -> None:
    """No partition is claimed before the rebalance delay, and then all of them."""
    a = group.join("a")
    group.run(0.4)
    assert a.held == []
    group.run(1)
    assert a.held == list(range(8))
    assert set(group.epochs().values()) == {1}


def test_an_assignment_is_complete_once_the_member_has_its_partitions(group: Group) -> None:
    """Pending until the group has settled and all is claimed; a rebalance later changes nothing."""
    a = group.join("a")
    group.run(0.4)
    assert assignment_of(a) is AssignmentState.PENDING
    group.run(1)
    assert assignment_of(a) is AssignmentState.COMPLETE
    b = group.join("b")
    a.channel.gives_back = False
    group.run()
    assert assignment_of(a) is AssignmentState.COMPLETE
    assert assignment_of(b) is AssignmentState.PENDING
    for claim in tuple(a.channel.asked):
        a.channel.release(claim)
    group.run()
    assert assignment_of(b) is AssignmentState.COMPLETE


def test_an_assignment_that_takes_too_long_is_overdue(group: Group) -> None:
    """Members that keep partitions do not hold up others for ever; the assignment may complete
    later.
    """
    a = group.join("a")
    group.run()
    a.channel.gives_back = False
    b = group.join("b")
    group.run(ASSIGNMENT_LIMIT - 1)
    assert assignment_of(b) is AssignmentState.PENDING
    group.run(2)
    assert assignment_of(b) is AssignmentState.OVERDUE
    for claim in tuple(a.channel.asked):
        a.channel.release(claim)
    group.run()
    assert assignment_of(b) is AssignmentState.COMPLETE


def test_a_member_too_many_rightly_has_nothing() -> None:
    """With more members than partitions, one is told that the map gives it none."""
    group = Group(partitions=1)
    members = [group.join(name) for name in "ab"]
    group.run()
    assert {assignment_of(m) for m in members} == {
        AssignmentState.COMPLETE,
        AssignmentState.NONE,
    }


def test_a_member_that_joins_again_has_yet_to_take_its_partitions(group: Group) -> None:
    """Partitions of the former membership do not count."""
    a = group.join("a")
    group.run()
    assert assignment_of(a) is AssignmentState.COMPLETE
    a.stopped = True
    a.session.expire()
    b = group.join("b")
    b.channel.gives_back = False
    group.run()
    assert b.held == list(range(8))
    a.stopped = False
    group.run()
    assert state_of(a) is MemberState.ACTIVE
    assert assignment_of(a) is AssignmentState.PENDING
    for claim in tuple(b.channel.asked):
        b.channel.release(claim)
    group.run()
    assert assignment_of(a) is AssignmentState.COMPLETE


def test_a_member_with_all_it_had_again_does_not_wait_for_the_group_to_settle(group: Group) -> None:
    """Complete before the rebalance delay is over, as all that the map gives it is claimed."""
    a = group.join("a")
    group.run()
    a.session.expire()
    group.run(0.1)
    assert len(a.channel.lost) == len(a.held) == 8
    assert assignment_of(a) is AssignmentState.COMPLETE


def test_the_first_one_back_waits_for_those_whose_partitions_it_could_have(group: Group) -> None:
    """The assignment is pending when the present map gives it the partitions of others as well."""
    a, b = group.join("a"), group.join("b")
    group.run()
    own = a.held
    group.crash(b)
    a.session.expire()
    group.run(0.4)
    assert a.held == own
    assert assignment_of(a) is AssignmentState.PENDING
    group.run()
    assert a.held == list(range(8))
    assert assignment_of(a) is AssignmentState.COMPLETE


def test_a_member_without_partitions_waits_for_the_group_to_settle(group: Group) -> None:
    """That the map of the moment gives it nothing says nothing yet."""
    a = group.join("a")
    a.member.rebalance.set_partitions({})
    group.run(0.4)
    assert state_of(a) is MemberState.ACTIVE
    assert assignment_of(a) is AssignmentState.PENDING
    group.run(1)
    assert assignment_of(a) is AssignmentState.NONE


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


def test_a_shorter_session_that_is_granted_later_shortens_the_lease(group: Group) -> None:
    """Another server may grant less at a reconnect; heartbeats come as often as that needs."""
    a = group.join("a")
    group.run()
    lease = a.channel.held[partition(0)].lease
    assert lease.remaining() > 2
    a.session.suspend()
    group.zookeeper.session_timeout = 2.0
    a.session.resume()
    group.run(1.5)
    for _ in range(60):
        group.run(0.1)
        assert 0.6 < lease.remaining() < 2


def test_members_that_start_together_collide_nowhere(group: Group) -> None:
    """Three members at once share eight partitions without giving any back."""
    members = [group.join(name) for name in "abc"]
    group.run()
    assert sorted(len(m.held) for m in members) == [2, 3, 3]
    assert all(not m.channel.asked for m in members)


def test_a_member_that_stops_hands_over(group: Group) -> None:
    """A draining member releases all partitions cleanly, and the others take them over."""
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
    """Heartbeats every sixth of a session keep the lease above a third of it."""
    a = group.join("a")
    group.run()
    lease = a.channel.held[partition(0)].lease
    for _ in range(60):
        group.run(0.5)
        assert lease.remaining() > 2
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


def test_a_process_that_stood_still_claims_again_once_it_is_heard(group: Group) -> None:
    """The client did not ping either, so a session that lives on may end soon."""
    a = group.join("a")
    group.run(60)
    a.stopped = True
    group.run(4)
    a.stopped = False
    looks = MagicMock(wraps=a.registry.members)
    a.registry.members = looks  # type: ignore[method-assign]
    group.run(1.9)
    assert {reason for _, reason in a.channel.lost} == {LossReason.LEASE_OVER}
    assert a.held == []
    looks.assert_not_called()
    assert a.member.run_once() > 0
    group.run(1)
    assert a.held == list(range(8))
    assert set(group.epochs().values()) == {2}


def test_a_live_holder_of_the_name_is_not_waited_for(group: Group) -> None:
    """A second process with the same name fails, naming the holder, and disturbs nothing."""
    first = group.join("a")
    group.run()
    second = group.join("a")
    group.run(4)
    assert state_of(second) is MemberState.FAILED
    assert isinstance(second.channel.error, StartError)
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


def test_partitions_not_released_in_time_are_lost_and_freed(group: Group) -> None:
    """A leave with claims in use ends them without a clean end, and names them."""
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


def test_a_slow_member_delays_no_other(group: Group) -> None:
    """Other members take the free partitions while one does not release its own."""
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
    a.member.rebalance.set_partitions({})
    group.run()
    assert a.held == []
    assert len(a.channel.asked) == 8
    assert not a.channel.lost
    assert a.registry.owners(TOPIC) == {}


def test_members_can_publish_other_wishes(group: Group) -> None:
    """A new weight takes effect without anybody leaving."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.member.update(replace(INFO, weight=3))
    group.run()
    assert (len(a.held), len(b.held)) == (6, 2)
    assert len(b.channel.asked) == 2


def test_static_members_are_told_of_their_conflict(group: Group) -> None:
    """The contended partition stays with its first owner, and both hear of it."""
    lists = {TOPIC: (0, 1, 2)}
    a = group.join("a", MemberInfo(INFO.topics, AssignmentMode.STATIC, lists=lists))
    group.run()
    b = group.join("b", MemberInfo(INFO.topics, AssignmentMode.STATIC, lists={TOPIC: (2, 3, 11)}))
    group.run()
    assert (a.held, b.held) == ([0, 1, 2], [3])
    assert b.channel.summary is not None
    assert b.channel.summary.contended == {partition(2): ("a", "b")}
    assert b.channel.summary.missing == {"b": (partition(11),)}
    assert b.channel.summary.unowned == {partition(n) for n in (4, 5, 6, 7)}


def test_fixed_count_members_leave_the_rest_unowned(group: Group) -> None:
    """Each has its number, and what is left is reported."""
    info = MemberInfo(INFO.topics, AssignmentMode.FIXED_COUNT, partitions_per_topic=3)
    a, b = group.join("a", info), group.join("b", info)
    group.run()
    assert len(a.held) == len(b.held) == 3
    assert a.channel.summary is not None
    assert len(a.channel.summary.unowned) == 2


def test_the_summary_has_pending_partitions(group: Group) -> None:
    """Partitions that are to be claimed are pending, and then owned."""
    a = group.join("a")
    group.run(0.3)
    assert a.channel.summary is not None
    assert len(a.channel.summary.pending) == 8
    group.run()
    assert not a.channel.summary.pending
    assert set(a.channel.summary.owners.values()) == {"a"}


def test_a_group_that_lost_all_sessions_takes_its_former_partitions(group: Group) -> None:
    """Members that come back after an outage first take their former partitions."""
    members = []
    for name in ("a", "b", "c"):
        members.append(group.join(name))
        group.run()
    before = [member.held for member in members]
    assert before != [[0, 1, 2], [3, 4, 5], [6, 7]]
    for member in members:
        member.session.suspend()
    group.run(7)
    for member in members:
        member.session.expire()
    for member in reversed(members):
        member.session.resume()
        group.run(0.2)
    group.run()
    assert [member.held for member in members] == before


def test_a_member_that_starts_again_takes_its_former_partitions(group: Group) -> None:
    """A restart between two looks at the group moves nothing, though its nodes were gone."""
    members = [group.join(name) for name in ("a", "b", "c")]
    group.run()
    before = [member.held for member in members]
    for name in ("a", "b"):
        group.zookeeper.remove(PATHS.member(name))
    group.run(12)
    assert [member.held for member in members] == before


def test_a_member_claims_its_former_partitions_without_delay(group: Group) -> None:
    """A member that starts again has its former partitions at once, and no others."""
    a, b = group.join("a"), group.join("b")
    group.run()
    had, other = a.held, b.held
    group.crash(a)
    b.stopped = True
    again = group.join("a")
    group.run(0.2)
    assert again.held == had
    b.stopped = False
    group.run()
    assert (again.held, b.held) == (had, other)
    assert not b.channel.asked


def test_a_mode_changes_while_the_member_runs(group: Group) -> None:
    """Lists take the place of an even share and the other way round; what stays is not touched."""
    a, b = group.join("a"), group.join("b")
    group.run()
    kept = a.held[0]
    epoch = group.epochs()[kept]
    a.member.update(replace(INFO, mode=AssignmentMode.STATIC, lists={TOPIC: (kept,)}), SETTINGS)
    group.run()
    assert a.held == [kept]
    assert len(b.held) == 7
    a.member.update(INFO, SETTINGS.model_copy(update={"rebalance_delay": 0.1}))
    group.run()
    assert len(a.held) == len(b.held) == 4
    assert group.epochs()[kept] == epoch


def test_tasks_move_as_members_say_that_they_are_warm(group: Group) -> None:
    """One that joins is given no live task before it is warm for it, and each one as it is."""
    warm = MemberInfo(frozenset({TOPIC}), together=True, warm=frozenset())
    a = group.join("a", warm)
    group.run()
    b = group.join("b", warm)
    group.run()
    assert (a.held, b.held) == (list(range(8)), [])
    assert a.channel.summary is not None
    coming = sorted(p.partition for p, taker in a.channel.summary.goal.items() if taker == "b")
    assert len(coming) == 4
    b.member.set_warm(frozenset(coming[:1]))
    group.run()
    assert b.held == coming[:1]
    b.member.update(replace(warm, weight=1))
    b.member.set_warm(frozenset(coming))
    group.run()
    assert b.held == coming
    assert all(claim.previous and claim.previous.clean_end for claim in b.channel.held.values())


def test_warm_tasks_stay_published_with_another_subscription(group: Group) -> None:
    """A change of what the member subscribes to does not say anything of its tasks."""
    warm = MemberInfo(frozenset({TOPIC}), together=True)
    a = group.join("a", warm)
    a.member.set_warm(frozenset({3}))
    a.member.update(replace(warm, weight=2))
    group.run()
    assert a.registry.members().members["a"] == replace(warm, weight=2, warm=frozenset({3}))


def test_free_tasks_go_at_once_to_members_that_are_warm_for_them(group: Group) -> None:
    """Tasks that no member is warm for wait until the group has settled."""
    warm = MemberInfo(frozenset({TOPIC}), together=True, warm=frozenset())
    a, b = group.join("a", warm), group.join("b", warm)
    group.run()
    before, copied = list(b.held), set(a.held[:3])
    assert len(a.held) == 4
    b.member.set_warm(frozenset(copied))
    group.run()
    cold = set(a.held) - copied
    group.crash(a)
    group.run(0.15)
    assert set(b.held) == copied.union(before)
    group.run()
    assert set(b.held) == copied.union(before, cold)


def test_tasks_of_a_member_that_drains_are_taken_as_they_become_free(group: Group) -> None:
    """Each is given back cleanly, and the others do not wait until the group has settled."""
    warm = MemberInfo(frozenset({TOPIC}), together=True, warm=frozenset())
    a, b = group.join("a", warm), group.join("b", warm)
    group.run()
    copied = frozenset(a.held)
    b.member.set_warm(copied)
    group.run()
    a.member.withdraw()
    group.run(0.3)
    assert b.held == list(range(8))
    taken = [claim for part, claim in b.channel.held.items() if part.partition in copied]
    assert all(claim.previous and claim.previous.clean_end for claim in taken)


def test_the_first_member_back_takes_no_tasks_of_others_that_it_is_warm_for(group: Group) -> None:
    """The others' sessions ended as its own did, and they come for their tasks in a moment."""
    warm = MemberInfo(frozenset({TOPIC}), together=True, warm=frozenset(range(8)))
    a, b = group.join("a", warm), group.join("b", warm)
    group.run()
    before = a.held, b.held
    for each in (a, b):
        each.session.expire()
    b.stopped = True
    group.run(0.3)
    assert a.held == before[0]
    b.stopped = False
    group.run()
    assert (a.held, b.held) == before
