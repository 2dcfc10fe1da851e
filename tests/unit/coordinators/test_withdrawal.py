"""Members that are gone for a while, and partitions that one of them leaves out."""

from __future__ import annotations

from headrace.coordinators.member_states import MemberState
from tests.unit.coordinators.group import PATHS, Group, partition, state_of


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
    """What was not given back is lost with the session, and the member does not join again."""
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
    """Whoever has it next, the member gives it back: there is no group that has to settle first."""
    a = group.join("a")
    group.run()
    a.member.leave_out({partition(3)})
    a.member.leave_out({partition(3), partition(5)})
    assert [claim.partition for claim in a.channel.asked] == [partition(3), partition(5)]


def test_a_partition_that_is_left_out_goes_to_another_or_to_nobody(group: Group) -> None:
    """The member gives it back and takes it again only when it is told to."""
    a = group.join("a")
    group.run()
    a.member.leave_out({partition(3)})
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
    a.member.leave_out(())
    group.run()
    assert a.held == list(range(8))
