from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from headrace.clock import Deadline
from headrace.local.waiting import wait_for
from headrace.spark.ahead import Ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.spark.handover import HandOver

SECONDS = 20.0


class Table:
    """Stands for the columns of a batch, or for what became of them in Spark."""


def session() -> HandOver:
    """Return something to stand for one session's way in."""
    return cast("HandOver", object())


@dataclass
class Spark:
    """What is sent to, which can be held up."""

    sent: list[Sequence[Any]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def send(self, _hand_over: HandOver, prepared: Sequence[Any]) -> Any:
        """Take note, wait, and return a new table or fail."""
        self.sent.append(prepared)
        assert self.may_go_on.wait(SECONDS)
        if self.error is not None:
            raise self.error
        return Table()

    def has_begun(self, count: int = 1) -> None:
        """Wait until so many were begun."""
        wait_for(lambda: len(self.sent) >= count, Deadline.after(SECONDS))


@pytest.fixture
def spark() -> Spark:
    """Something to send to, that holds nobody up."""
    spark = Spark()
    spark.may_go_on.set()
    return spark


@pytest.fixture
def ahead(spark: Spark) -> Iterator[Ahead]:
    """A running thread that sends there."""
    ahead = Ahead("ahead", spark.send)
    ahead.start()
    yield ahead
    spark.may_go_on.set()
    assert ahead.stop(Deadline.after(SECONDS))


def test_what_was_foretold_and_sent_is_taken_once(ahead: Ahead, spark: Spark) -> None:
    """The very tables that were foretold are sent by then, and are not kept for another time."""
    tables, way_in = [Table(), Table()], session()
    ahead.foretell(tables, way_in)
    spark.has_begun()

    assert isinstance(ahead.take(list(tables), way_in, SECONDS), Table)
    assert ahead.take(tables, way_in, SECONDS) is None
    assert spark.sent == [tables]


def test_the_lane_waits_for_what_is_being_sent(ahead: Ahead, spark: Spark) -> None:
    """Taking what is on its way returns it once it has arrived, instead of sending it twice."""
    spark.may_go_on.clear()
    tables, way_in = [Table()], session()
    ahead.foretell(tables, way_in)
    spark.has_begun()
    threading.Timer(0.05, spark.may_go_on.set).start()

    assert isinstance(ahead.take(tables, way_in, SECONDS), Table)


def test_what_does_not_arrive_in_time_is_left_to_the_lane(ahead: Ahead, spark: Spark) -> None:
    """A JVM that does not answer holds the lane up for as long as a job may take, no longer."""
    spark.may_go_on.clear()
    tables, way_in = [Table()], session()
    ahead.foretell(tables, way_in)
    spark.has_begun()

    assert ahead.take(tables, way_in, 0.01) is None


def test_other_tables_and_another_session_are_not_what_was_foretold(
    ahead: Ahead, spark: Spark
) -> None:
    """Less, more, an equal copy, or a JVM that was built again: the lane sends by itself."""
    tables, way_in = [Table(), Table()], session()
    for taken, by in [
        (tables[:1], way_in),
        ([*tables, Table()], way_in),
        ([tables[0], Table()], way_in),
        (tables, session()),
    ]:
        before = len(spark.sent)
        ahead.foretell(tables, way_in)
        spark.has_begun(before + 1)
        assert ahead.take(taken, by, SECONDS) is None


def test_an_error_on_the_way_is_left_to_the_lane(ahead: Ahead, spark: Spark) -> None:
    """Sending that failed gives nothing, and what comes after it is sent as ever."""
    spark.error = OSError("no room for the file")
    tables, way_in = [Table()], session()
    ahead.foretell(tables, way_in)
    spark.has_begun()
    assert ahead.take(tables, way_in, SECONDS) is None

    spark.error = None
    ahead.foretell(tables, way_in)
    spark.has_begun(2)
    assert isinstance(ahead.take(tables, way_in, SECONDS), Table)


def test_what_nobody_began_to_send_is_sent_by_the_lane(ahead: Ahead, spark: Spark) -> None:
    """While the thread is held up by what was withdrawn, the lane does not wait for its turn."""
    spark.may_go_on.clear()
    way_in = session()
    ahead.foretell([Table()], way_in)
    spark.has_begun()
    tables = [Table()]
    ahead.foretell(tables, way_in)

    assert ahead.take(tables, way_in, SECONDS) is None
    spark.may_go_on.set()


@pytest.mark.parametrize("by", ["taking", "another", "nothing"])
def test_no_table_is_kept_longer_than_it_may_be_wanted(ahead: Ahead, spark: Spark, by: str) -> None:
    """Taken, replaced or withdrawn, tables are freed without the cyclic collector's help."""
    way_in = session()
    table = Table()
    freed = weakref.ref(table)
    gc.disable()
    try:
        ahead.foretell([table], way_in)
        spark.has_begun()
        if by == "taking":
            ahead.take([table], way_in, SECONDS)
        else:
            ahead.foretell([Table()] if by == "another" else [], way_in)
        del table
        spark.sent.clear()
        wait_for(lambda: freed() is None, Deadline.after(SECONDS))
    finally:
        gc.enable()


def test_a_stop_ends_an_idle_thread_and_leaves_one_that_is_stuck(spark: Spark) -> None:
    """Where the JVM does not answer, the stop says that the thread did not end in time."""
    idle = Ahead("idle", spark.send)
    idle.start()
    assert idle.stop(Deadline.after(SECONDS))

    spark.may_go_on.clear()
    stuck = Ahead("stuck", spark.send)
    stuck.start()
    stuck.foretell([Table()], session())
    spark.has_begun()
    assert not stuck.stop(Deadline.after(0.01))
    spark.may_go_on.set()
    assert stuck.stop(Deadline.after(SECONDS))
