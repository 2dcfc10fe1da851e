from __future__ import annotations

import pytest

from benchmarks.chaos.run import Plan, carry_out
from benchmarks.chaos.schedule import draw

#: One whose minute has every kind of fault, found by drawing.
_SEED = 7


@pytest.mark.timeout(400)
def test_a_minute_of_faults_loses_nothing_and_repeats_nothing_that_must_not_be() -> None:
    """Whatever happens to members, links and servers, the oracle finds every record, once.

    Once holds for the transactional sink, and for the others after clean events; offsets that are
    fenced never go back.
    """
    report = carry_out(Plan(draw(_SEED, 60)))
    assert report.figures["holds"], report.as_table()
