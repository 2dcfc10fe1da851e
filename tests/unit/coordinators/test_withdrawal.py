"""Members that are gone for a while, and partitions that one of them leaves out."""

from __future__ import annotations

from headrace.coordinators.claims import LossReason
from headrace.coordinators.member_info import MemberState
from tests.unit.coordinators.group import PATHS, Group, Participant, partition, state_of


def test_a_member_that_withdraws_is_gone_until_it_comes_back(group: Group) -> None:
    """Everything is given back cleanly, its node is gone, and later it gets its share again."""
    a, b = group.join("a"), group.join("b")
    group.run()
    a.member.withdraw()
    group.run()
    assert state_of(a) is MemberState.AWAY
    assert a.held == []
    assert b.held == list(range(8))
    assert group.zookeeper.node(PATHS.member("a")) is None
    assert all(
        claim.previous and claim.previous.clean_end
        for claim in b.channel.held.values()
        if claim.epoch == 2
    )
    a.member.undrain()
    group.run()
    assert state_of(a) is MemberState.ACTIVE
    assert len(a.held) == len(b.held) == 4
    assert not a.channel.lost


def test_a_member_that_withdraws_before_it_joined_never_joins(group: Group) -> None:
    """A pause that outlives a restart holds from the beginning."""
    a = group.join("a")
    a.member.withdraw()
    group.run()
    assert state_of(a) is MemberState.AWAY
    assert group.zookeeper.node(PATHS.member("a")) is None
    a.session.expire()
    group.run()
    assert state_of(a) is MemberState.AWAY
    a.member.undrain()
    group.run()
    assert a.held == list(range(8))


def test_a_session_that_ends_while_withdrawing_leads_away_as_well(group: Group) -> None:
    """Partitions that were not released are lost with the session, and the member stays away."""
    a = group.join("a")
    group.run()
    a.channel.gives_back = False
    a.member.withdraw()
    group.run(1)
    assert len(a.channel.asked) == 8
    a.session.suspend()
    group.run(8)
    a.session.resume()
    group.run()
    assert state_of(a) is MemberState.AWAY
    assert a.held == []


def test_a_partition_that_is_left_out_is_asked_for_at_once(group: Group) -> None:
    """The member releases it for any next owner, without waiting for the group to settle."""
    a = group.join("a")
    group.run()
    a.member.rebalance.leave_out({partition(3)})
    a.member.rebalance.leave_out({partition(3), partition(5)})
    assert [claim.partition for claim in a.channel.asked] == [partition(3), partition(5)]


def test_a_partition_that_is_left_out_goes_elsewhere(group: Group) -> None:
    """The member releases it, and takes it again only on command."""
    a = group.join("a")
    group.run()
    a.member.rebalance.leave_out({partition(3)})
    group.run()
    assert a.held == [0, 1, 2, 4, 5, 6, 7]
    b = group.join("b")
    group.run()
    assert 3 in b.held
    group.run(60)
    assert 3 in b.held
    group.crash(b)
    group.run()
    assert 3 not in a.held
    a.member.rebalance.leave_out(())
    group.run()
    assert a.held == list(range(8))


def _owned(group: Group) -> list[int]:
    """Return the numbers of the partitions that have an owner node."""
    return [n for n in range(8) if group.zookeeper.node(PATHS.owner(partition(n))) is not None]


def _until_away(group: Group, member: Participant) -> None:
    for _ in range(100):
        if state_of(member) is MemberState.AWAY:
            return
        group.run(0.05)
    raise AssertionError(state_of(member))


def test_claims_of_a_broken_lease_leave_no_nodes_behind(group: Group) -> None:
    """A member that withdraws after a standstill is away only once its nodes are gone."""
    a = group.join("a")
    group.run()
    a.channel.gives_back = False
    group.clock.advance(8)
    a.member.withdraw()
    _until_away(group, a)
    assert {reason for _, reason in a.channel.lost} == {LossReason.LEASE_OVER}
    assert _owned(group) == []
    b = group.join("b")
    group.run()
    assert b.held == list(range(8))


def test_a_fenced_member_that_withdraws_takes_its_nodes_with_it(group: Group) -> None:
    """The session lives on, so the member joins once more to remove its nodes."""
    a = group.join("a")
    group.run()
    a.member.rejoin(a.channel.held[partition(0)])
    a.member.withdraw()
    _until_away(group, a)
    assert _owned(group) == []
    assert group.zookeeper.node(PATHS.member("a")) is None


def test_a_lost_claim_blocks_until_its_node_is_gone(group: Group) -> None:
    """A lost claim may have left its owner node, for which a waiting caller must wait."""
    a = group.join("a")
    group.run()
    a.channel.gives_back = False
    a.member.rebalance.leave_out({partition(3)})
    a.session.suspend()
    group.run(8)
    assert a.member.claims == ()
    assert a.member.still_claimed == {partition(number) for number in range(8)}
    a.session.resume()
    group.run()
    assert a.member.still_claimed == {partition(number) for number in _owned(group)}
    assert _owned(group) == [0, 1, 2, 4, 5, 6, 7]


def test_a_member_that_leaves_after_a_broken_lease_leaves_no_node(group: Group) -> None:
    """The session may go on, as when the channel alone is removed."""
    a = group.join("a")
    group.run()
    group.clock.advance(8)
    a.run_once()
    assert a.member.claims == ()
    assert a.member.leave() == ()
    assert _owned(group) == []
