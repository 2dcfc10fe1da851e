"""Times of records in a channel: the earliest and the latest, and those that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.streams import Field, Row, Topology, count, key
from tests.unit.extensions.streams.test_fold import KINDS, RULES, InMemory

if TYPE_CHECKING:
    from tests.unit.extensions.streams.test_fold import Record

SKIP = RejectRules(LetterHeaders("headrace", "g"), "skip")

#: The end of the year 9999, in milliseconds.
LAST = 253_402_300_799_999


class Event(Row):
    at: Field[int]


class Counted(Row):
    n: Field[int]


def counting(kind: str) -> Topology:
    """Return a topology that counts events in windows of a kind by a time that they say."""
    app = Topology()
    grouped: Any = app.stream("in", Event, time=Event.at).group_by(key, name="n")
    if KINDS[kind] is not None:
        grouped = grouped.window(KINDS[kind])
    grouped.agg(Counted, n=count()).each().to("out")
    return app


def event(at: int) -> Record:
    """Return an event at a time."""
    return (b"a", b'{"at":%d}' % at, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_and_the_last_time_are_counted_over_restarts(kind: str) -> None:
    """Windows begin at 0 at the earliest, and the last ones end after the last time."""
    plan = counting(kind).plan("shop")
    run = InMemory(plan, plan.channels[0], RULES)
    for at in (0, LAST, LAST):
        run.run("in", [event(at)])
        run.restart()
    assert {time for _, _, time in run.written["out"]} >= {0, LAST}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [-1, LAST + 1, 1_700_000_000_000_000, 2**62, 2**63 - 1, -(2**63)])
def test_a_time_that_is_none_is_poison_and_ends_no_window(kind: str, at: int) -> None:
    """One in microseconds would be in a far future, which brokers refuse to store."""
    plan = counting(kind).plan("shop")
    run = InMemory(plan, plan.channels[0], SKIP)
    run.run("in", [event(1), event(at), event(2)])
    assert [each.rejected for each in run.counts] == [1]
    assert [each.late for each in run.counts] == [0]
    text = "before 1970" if at < 0 else "after the year 9999; a number is in milliseconds"
    with pytest.raises(PoisonRecordError, match=text):
        InMemory(plan, plan.channels[0], RULES).run("in", [event(at)])


def test_a_row_of_a_table_without_a_time_is_poison() -> None:
    """The records that are written of it would have none either."""
    app = Topology()
    app.table("in", Event, name="events").updates().to("out")
    plan = app.plan("shop")
    run = InMemory(plan, plan.channels[0], SKIP)
    run.run("in", [(b"a", b'{"at":1}', 1), (b"b", b'{"at":2}', -1)])
    assert [each.rejected for each in run.counts] == [1]
    assert [key for key, _, _ in run.written["out"]] == [b"a"]
