from __future__ import annotations

from dataclasses import replace

from headrace.coordinators.member_info import MemberInfo
from headrace.coordinators.rebalance import LONGEST_WAIT, Debounce
from headrace.testing.channel import FakeClock

INFO = MemberInfo(frozenset({"t"}))


def test_members_must_have_been_the_same_for_the_delay() -> None:
    """The wait begins with the first look, and begins again with each change."""
    clock = FakeClock()
    debounce = Debounce(2, clock)
    assert debounce.observe({"a": INFO}) == 2
    clock.advance(1.5)
    assert debounce.observe({"a": INFO}) == 0.5
    assert debounce.observe({"a": INFO, "b": INFO}) == 2
    clock.advance(2)
    assert debounce.observe({"a": INFO, "b": INFO}) == 0
    assert debounce.observe({"a": INFO, "b": INFO}) == 0


def test_a_group_that_never_rests_is_rebalanced_all_the_same() -> None:
    """Changes put a rebalance off for ten delays at most."""
    clock = FakeClock()
    debounce = Debounce(2, clock)
    for number in range(LONGEST_WAIT):
        assert debounce.observe({str(number): INFO}) > 0
        clock.advance(2)
    assert debounce.observe({"last": INFO}) == 0


def test_a_draining_member_counts_as_gone() -> None:
    """The drain is the change; the leave that follows it puts nothing off."""
    clock = FakeClock()
    debounce = Debounce(2, clock)
    both = {"a": INFO, "b": INFO}
    debounce.observe(both)
    clock.advance(2)
    assert debounce.observe(both) == 0
    assert debounce.observe({**both, "b": replace(INFO, draining=True)}) == 2
    clock.advance(1)
    assert debounce.observe({"a": INFO}) == 1


def test_a_member_that_becomes_warm_puts_nothing_off() -> None:
    """For which tasks members are warm changes all the time, and tasks are to move then."""
    clock = FakeClock()
    debounce = Debounce(2, clock)
    cold = replace(INFO, warm=frozenset())
    debounce.observe({"a": INFO, "b": cold})
    clock.advance(2)
    assert debounce.observe({"a": INFO, "b": cold}) == 0
    assert debounce.observe({"a": INFO, "b": replace(INFO, warm=frozenset({1}))}) == 0
