from __future__ import annotations

import pytest

from benchmarks.chaos.run import Plan, carry_out
from benchmarks.chaos.schedule import draw
from tests.chaos import seeds

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
def test_a_minute_of_faults_loses_nothing_and_repeats_nothing_that_must_not_be() -> None:
    """The oracle finds every record, once, after faults of members, links and servers.

    Once holds for the transactional sink, and for the others after clean events; offsets that are
    fenced never go back. Every kind of fault happens.
    """
    report = carry_out(Plan(draw(seeds.MINUTE, 60)))
    assert report.figures["holds"], report.as_table()
    assert all(report.figures["faults"].values()), report.as_table()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds.FOUND_BUGS)
def test_seeds_that_found_bugs_find_none_any_more(seed: int) -> None:
    """Five minutes of a seed that once showed a fault of ours hold."""
    report = carry_out(Plan(draw(seed, 300)))
    assert report.figures["holds"], report.as_table()
