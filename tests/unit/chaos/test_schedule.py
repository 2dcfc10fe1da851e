from __future__ import annotations

import pytest

from benchmarks.chaos.schedule import CLEAN, Kind, draw
from tests.chaos import seeds

_SEEDS = range(25)


def test_a_seed_has_one_schedule() -> None:
    """The same seed and length give the same faults, another seed gives others."""
    assert draw(3, 120) == draw(3, 120)
    assert draw(3, 120).faults != draw(4, 120).faults


def test_the_minute_that_is_always_tested_has_every_kind() -> None:
    """A change in the drawing must not take a kind of fault out of the short test."""
    assert {fault.kind for fault in draw(seeds.MINUTE, 60).faults} == set(Kind)


@pytest.mark.parametrize("seed", _SEEDS)
def test_ten_minutes_have_every_kind_and_enough_of_them(seed: int) -> None:
    """Every kind comes at least once, and there are at least three faults a minute."""
    faults = draw(seed, 600).faults
    assert {fault.kind for fault in faults} == set(Kind)
    assert len(faults) >= 3 * 10


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_run_begins_with_clean_events_only(seed: int) -> None:
    """Before the first hard fault there is time to count what the clean events did."""
    schedule = draw(seed, 120)
    early = [fault for fault in schedule.faults if fault.at < schedule.clean_until]
    assert early
    assert {fault.kind for fault in early} <= set(CLEAN)
    later = [fault for fault in schedule.faults if fault.at >= schedule.clean_until]
    assert min(fault.at for fault in later) > max(fault.at + fault.lasts for fault in early)


@pytest.mark.parametrize("seed", _SEEDS)
def test_two_members_are_always_meant_to_run(seed: int) -> None:
    """Joins start members that rest, leaves stop members that run, and two stay."""
    schedule = draw(seed, 600)
    running = set(schedule.running)
    for fault in schedule.faults:
        if fault.kind is Kind.JOIN:
            assert fault.target not in running
            running.add(fault.target)
        elif fault.kind is Kind.LEAVE:
            running.remove(fault.target)
        elif fault.target in schedule.members:
            assert fault.target in running
        assert len(running) >= 2


@pytest.mark.parametrize("seed", _SEEDS)
def test_no_target_is_harmed_while_it_is_being_harmed(seed: int) -> None:
    """Faults overlap, but not on one target."""
    free_at: dict[str, float] = {}
    for fault in draw(seed, 600).faults:
        assert fault.at >= free_at.get(fault.target, 0.0)
        free_at[fault.target] = fault.at + fault.lasts
