"""Times of records in a channel: the earliest and the latest, and those that are none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.tables import SCHEMA
from headrace.extensions.streams.runtime.tasks import RejectRules, times_of_rows
from headrace.streams import Field, Row, StreamsTest, Topology, count, key
from headrace.testing.streams import check_topology
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


class Other(Row):
    at: Field[int]


class Pair(Row):
    left: Field[int | None]
    right: Field[int | None]


def joining(**left: Any) -> Topology:
    """Return a topology whose left side reads its records at the times that they say."""
    app = Topology()
    events = app.stream("events", Event, time=Event.at)
    others = app.stream("others", Other, **left)
    joined = events.join(
        others, Pair, name="j", kind="left", within="5ms", left=Event.at, right=Other.at
    )
    joined.to("out")
    return app


def test_topics_are_merged_by_the_times_that_rows_say() -> None:
    """Records whose own times are in another order are joined as their rows' times say."""
    test = StreamsTest(joining(time=Other.at), batch=100)
    # by their own times all of one topic would come before the other's
    for own, at in ((3, 10), (4, 30), (5, 50)):
        test.pipe("events", {"at": at}, key="k", time=own)
    for own, at in ((0, 11), (1, 31), (2, 51)):
        test.pipe("others", {"at": at}, key="k", time=own)
    pairs = [tuple(each.value.values()) for each in test.read("out")]
    assert pairs == [(10, 11), (30, 31), (50, 51)]


def test_times_of_rows_are_those_by_which_tasks_merge() -> None:
    """A record that is poison by its time comes after the one before it; others have their own."""
    plan = joining().plan("shop")
    find = times_of_rows(plan, ["events", "others"])
    values = [b'{"at":20}', b"{", b'{"at":-7}', None, b'{"at":10}']
    events = [record_of("events", at, value) for at, value in enumerate(values)]
    never = np.iinfo(np.int64).min
    assert find(table_of(events)).tolist() == [20, never, never, never, 10]
    assert find(table_of([record_of("others", 7, b'{"at":20}')])).tolist() == [7]


def record_of(topic: str, time: int, value: bytes | None) -> dict[str, Any]:
    """Return a record as a micro-batch has it."""
    moment = datetime.fromtimestamp(time / 1000, UTC)
    record = {"topic": topic, "partition": 0, "offset": time, "timestamp": moment}
    return {**record, "key": b"k", "value": value}


def table_of(records: list[dict[str, Any]]) -> pa.Table:
    """Return records in the columns of every micro-batch."""
    return pa.Table.from_pylist(records, schema=SCHEMA)


def test_runs_of_any_cuts_have_the_times_of_rows() -> None:
    """Cut at random and started again, the parts read the same order."""
    records = [
        (topic, "k", {"at": at}, 1_000 - at)
        for at in range(0, 600, 7)
        for topic in ("events", "others")
    ]
    check_topology(lambda: joining(time=Other.at), records)
