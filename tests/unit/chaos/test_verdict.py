from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.chaos.keyed import Counted
from benchmarks.chaos.oracle import Conservation
from benchmarks.chaos.schedule import Kind
from benchmarks.chaos.verdict import Events, Evidence, Offsets, judge

_RIGHT = Conservation(
    acknowledged=1000, stored=1000, lost=0, duplicated=0, disordered=0, claims=8, moved=8, moves=9
)
_COUNTED = Counted(keys=5, facts=1000, miscounted=0, rows=5, wrong_rows=0)
_SEEN = Offsets(commits=5, backwards=0, watched=True, fenced=True)
_EVENTS = Events(
    seconds=60.0,
    done=Counter(dict.fromkeys(Kind, 1)),
    exits=(0, 3),
    clean_exits=(0,),
    unreturned=("member-1",),
    clean_unreturned=(),
)
_EVIDENCE = Evidence(
    seed=1,
    rate=20.0,
    complete=True,
    found={"sure": _RIGHT},
    clean={"sure": 0},
    offsets={"sure": _SEEN},
    repeats={},
    transactional=["sure"],
    events=_EVENTS,
    counted={"sure": _COUNTED},
)


def _figures(**changed: Any) -> dict[str, Any]:
    return judge(replace(_EVIDENCE, **changed)).figures


def test_a_run_with_nothing_wrong_holds() -> None:
    """Each record is stored once, and the run reached its floors."""
    figures = _figures()
    assert figures["holds"]
    assert figures["below_floor"] == []


@pytest.mark.parametrize(
    ("figure", "changed"),
    [
        ("lost", {"found": {"sure": replace(_RIGHT, lost=1)}}),
        ("unreadable", {"found": {"sure": replace(_RIGHT, unreadable=1)}}),
        ("duplicated", {"found": {"sure": replace(_RIGHT, duplicated=1)}}),
        ("disordered", {"found": {"sure": replace(_RIGHT, disordered=1)}}),
        ("duplicated_by_clean_events", {"clean": {"sure": 1}}),
        ("commits_backwards", {"offsets": {"sure": replace(_SEEN, backwards=1)}}),
        ("unexpected_exits", {"events": replace(_EVENTS, exits=(1,))}),
        ("bad_exits_by_clean_events", {"events": replace(_EVENTS, clean_exits=(3,))}),
        (
            "unreturned_by_clean_events",
            {"events": replace(_EVENTS, clean_unreturned=("member-1",))},
        ),
        ("miscounted", {"counted": {"sure": replace(_COUNTED, miscounted=1)}}),
        ("wrong_rows", {"counted": {"sure": replace(_COUNTED, wrong_rows=1)}}),
    ],
)
def test_each_thing_that_must_not_happen_fails_a_run(figure: str, changed: dict[str, Any]) -> None:
    """One of each is enough."""
    figures = _figures(**changed)
    assert figures[figure] == 1
    assert not figures["holds"]


@pytest.mark.parametrize(
    ("floor", "changed"),
    [
        ("complete", {"complete": False}),
        ("rate", {"rate": 1000.0}),
        ("moved", {"found": {"sure": replace(_RIGHT, moved=3)}}),
        ("commits_seen", {"offsets": {"sure": replace(_SEEN, commits=0)}}),
        ("rows_compared", {"counted": {"sure": replace(_COUNTED, rows=0)}}),
        ("offsets_watched", {"offsets": {"sure": replace(_SEEN, watched=False)}}),
        ("faults_a_minute", {"events": replace(_EVENTS, done=Counter())}),
        ("every_kind", {"events": replace(_EVENTS, seconds=600.0, done=Counter({Kind.JOIN: 100}))}),
    ],
)
def test_a_run_that_proves_too_little_does_not_hold(floor: str, changed: dict[str, Any]) -> None:
    """The figure below its floor is named."""
    figures = _figures(**changed)
    assert floor in figures["below_floor"]
    assert not figures["holds"]


def test_while_a_schedule_waits_no_fault_is_due() -> None:
    """A machine that takes long for what has begun makes no run of fewer faults."""
    slow = replace(_EVENTS, seconds=600.0 - 1, waited=540.0 - 1)
    assert _figures(events=slow, rate=1.0)["faults_a_minute"] == _figures()["faults_a_minute"]
    assert _figures(events=slow, rate=1.0)["holds"]
    without = _figures(events=replace(slow, waited=0.0), rate=1.0)
    assert without["below_floor"] == ["faults_a_minute"]


def test_hard_faults_may_keep_a_member_away() -> None:
    """Codes for being started again, and restarts that took long, are told and no more."""
    figures = _figures()
    assert (figures["exits"], figures["unreturned"]) == ({"0": 1, "3": 1}, 1)
    assert figures["holds"]


def test_duplicates_and_commits_that_go_back_where_they_may_do_not_fail_a_run() -> None:
    """A sink without offsets may repeat after a hard fault, and metadata refuses no commit."""
    figures = _figures(
        found={"sure": _RIGHT, "plain": replace(_RIGHT, duplicated=7)},
        offsets={"sure": _SEEN, "plain": replace(_SEEN, backwards=2, fenced=False)},
    )
    assert figures["holds"]
    assert (figures["duplicated"], figures["commits_backwards"]) == (0, 0)
