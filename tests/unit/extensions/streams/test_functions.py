"""Users' functions in a channel: what they raise, return, change and do not return from."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.call_watch import CallWatch
from headrace.core.errors import (
    ConfigError,
    JobTimeoutError,
    PoisonRecordError,
    ReducerError,
    RetryableError,
)
from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.streams.rows import field
from headrace.extensions.streams.runtime.fold import TopologyFold
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.streams import Field, Row, Topology, fold, hopping, key
from tests.unit.extensions.streams.test_fold import RULES, InMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.streams.topology import Stream
    from tests.unit.extensions.streams.test_fold import Record

SKIP = RejectRules(LetterHeaders("headrace", "g"), "skip")

RECORDS: list[Record] = [(b"a", b'{"n":%d}' % n, n) for n in range(3)]


class Number(Row):
    n: Field[int]


class Pair(Row):
    one: Field[int]
    other: Field[int]


class Money(Row):
    v: Field[Decimal] = field(scale=2)


class Moment(Row):
    v: Field[datetime]


class Nested(Row):
    v: Field[Number]


class Numbers(Row):
    v: Field[list[int]]


class Whole(Row):
    v: Field[int]


def piped(build: Callable[[Stream[Number]], Stream[Any]], rules: RejectRules = SKIP) -> InMemory:
    """Return a channel of one operator, which has had three numbers."""
    app = Topology()
    build(app.stream("in", Number)).to("out")
    plan = app.plan("shop")
    run = InMemory(plan, plan.channels[0], rules)
    run.run("in", RECORDS)
    return run


def folded(row: type[Row], aggregate: Any, rules: RejectRules = SKIP) -> list[InMemory]:
    """Return a channel that folds numbers, and one that is restarted after each."""
    app = Topology()
    grouped = app.stream("in", Number).group_by(key, name="s")
    grouped.agg(row, v=aggregate).each().to("out")
    plan = app.plan("shop")
    runs = [InMemory(plan, plan.channels[0], rules) for _ in range(2)]
    runs[0].run("in", [*RECORDS, (b"b", b'{"n":7}', 3)])
    for each in [*RECORDS, (b"b", b'{"n":7}', 3)]:
        runs[1].run("in", [each])
        runs[1].restart()
    return runs


def values_of(run: InMemory) -> list[bytes | None]:
    """Return the values that were written."""
    return [value for _, value, _ in run.written.get("out", [])]


def failing_at_one(bad: Callable[[], Any]) -> Callable[[Number], Any]:
    """Return a function that does something else for the number 1."""
    return lambda row: bad() if row.n == 1 else Whole(v=row.n)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: sys.exit(2), "SystemExit: 2"),
        (lambda: Whole(v=1.5), "Whole.v: 1.5, of type float, was returned, and int is expected"),  # type: ignore[arg-type]
        (lambda: Whole(v=2**64), "Whole.v: 18446744073709551616"),
        (lambda: Whole(v=True), "Whole.v: True, of type bool"),
        (lambda: Whole(v=None), "Whole.v: None was returned, and int is expected"),  # type: ignore[arg-type]
        (lambda: "abc", "'abc' was returned, and Whole is expected"),
        (lambda: 5, "5 was returned, and Whole is expected"),
        (lambda: {"v": 1}, "{'v': 1} was returned"),
        (lambda: (1 // 0 for _ in "a"), "ZeroDivisionError"),
    ],
)
def test_a_map_that_fails_for_a_row_makes_its_record_poison(
    bad: Callable[[], Any], reason: str
) -> None:
    """The reason is what it raises or returns, and nothing is cut to a field's type."""
    run = piped(lambda stream: stream.map(failing_at_one(bad), Whole))
    assert values_of(run) == [b'{"v":0}', b'{"v":2}']
    with pytest.raises(PoisonRecordError, match="record at offset 1: map: ") as caught:
        piped(lambda stream: stream.map(failing_at_one(bad), Whole), RULES)
    assert reason in str(caught.value)


@pytest.mark.parametrize("bad", [lambda: 1 // 0, lambda: sys.exit(2)])
def test_a_peek_that_fails_for_a_row_makes_its_record_poison(bad: Callable[[], Any]) -> None:
    """The others go on."""
    run = piped(lambda stream: stream.peek(failing_at_one(bad)))
    assert values_of(run) == [b'{"n":0}', b'{"n":2}']
    with pytest.raises(PoisonRecordError, match="record at offset 1: peek: "):
        piped(lambda stream: stream.peek(failing_at_one(bad)), RULES)


def test_a_map_of_batches_that_fails_is_asked_again_until_the_record_is_found() -> None:
    """The rows that it does not fail for go on."""

    def halve(rows: Any) -> Any:
        numbers = rows.column("n").to_pylist()
        if 1 in numbers:
            sys.exit(1)
        return pa.record_batch({"v": rows.column("n")})

    run = piped(lambda stream: stream.map_batches(halve, Whole))
    assert values_of(run) == [b'{"v":0}', b'{"v":2}']
    with pytest.raises(PoisonRecordError, match="record at offset 1: map: SystemExit: 1"):
        piped(lambda stream: stream.map_batches(halve, Whole), RULES)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (None, "NoneType was returned, and a RecordBatch of 1 rows is expected"),
        (pa.table({"v": [1]}), "Table was returned"),
        (pa.record_batch({"v": [1, 2]}), "one of 2 was returned"),
        (pa.record_batch({"w": [1]}), "the RecordBatch has no column v"),
        (pa.record_batch({"v": ["a"]}), "Failed to parse"),
        (pa.record_batch({"v": [1.5]}), "truncated"),
    ],
)
def test_a_map_of_batches_that_returns_something_else_names_it(made: Any, reason: str) -> None:
    """All records are poison."""
    with pytest.raises(PoisonRecordError, match="record at offset 0: map: ") as caught:
        piped(lambda stream: stream.map_batches(lambda _: made, Whole), RULES)
    assert reason in str(caught.value)


def test_a_null_of_a_map_of_batches_where_a_field_needs_a_value_is_poison() -> None:
    """A row that is null throughout is left out."""

    def made(rows: Any) -> Any:
        one = [{0: 0, 1: None, 2: None}[n] for n in rows.column("n").to_pylist()]
        other = [{0: 0, 1: 1, 2: None}[n] for n in rows.column("n").to_pylist()]
        return pa.record_batch(
            {"one": pa.array(one, pa.int64()), "other": pa.array(other, pa.int64())}
        )

    run = piped(lambda stream: stream.map_batches(made, Pair))
    assert values_of(run) == [b'{"one":0,"other":0}']
    assert [each.rejected for each in run.counts] == [1]


@pytest.mark.parametrize("op", ["map", "map_batches", "peek"])
def test_an_error_that_is_to_be_tried_again_is_no_poison(op: str) -> None:
    """It says that the function cannot work now."""

    def unable(_: Any) -> Any:
        raise RetryableError("the service is away")

    others = () if op == "peek" else (Whole,)
    with pytest.raises(RetryableError, match="the service is away"):
        piped(lambda stream: getattr(stream, op)(unable, *others))


@pytest.mark.parametrize(
    ("row", "start", "add", "last"),
    [
        (Money, Decimal(0), lambda sum_, row: sum_ + Decimal(row.n) / 4, b'{"v":0.75}'),
        (
            Moment,
            datetime(2024, 1, 1, tzinfo=UTC),
            lambda moment, row: moment.replace(microsecond=row.n),
            b'{"v":"2024-01-01T00:00:00.000002Z"}',
        ),
        (Nested, Number(n=0), lambda sum_, row: Number(n=sum_.n + row.n), b'{"v":{"n":3}}'),
        (Numbers, [], lambda seen, row: [*seen, row.n], b'{"v":[0,1,2]}'),
        (Numbers, [], lambda seen, row: seen.append(row.n) or seen, b'{"v":[0,1,2]}'),
        (Numbers, (), lambda seen, row: (*seen, row.n), b'{"v":[0,1,2]}'),
    ],
    ids=["decimal", "datetime", "row", "list", "changed", "tuple"],
)
def test_a_fold_goes_on_with_the_same_value_after_a_restart(
    row: type[Row], start: Any, add: Any, last: bytes
) -> None:
    """It may have any type of a field, and a function may change what it gets."""
    one, other = folded(row, fold(start, add, rows=Number))
    assert values_of(one) == values_of(other)
    assert one.rows("s") == other.rows("s")
    assert values_of(one)[2] == last


@pytest.mark.parametrize(
    ("add", "reason"),
    [
        (lambda sum_, row: sum_ + 0.5, "0.5, of type float, was returned, and int is expected"),
        (lambda sum_, row: "x", "'x', of type str"),
        (lambda sum_, row: None, "None was returned"),
        (lambda sum_, row: {1}, "{1}, of type set"),
        (lambda sum_, row: 2**63, "9223372036854775808, of type int"),
        (lambda sum_, row: sys.exit(3), "SystemExit: 3"),
    ],
)
def test_a_fold_of_another_type_makes_its_record_poison(add: Any, reason: str) -> None:
    """The value goes on without it."""
    one, other = folded(Whole, fold(0, add, rows=Number))
    assert [sum(each.rejected for each in run.counts) for run in (one, other)] == [4, 4]
    with pytest.raises(PoisonRecordError, match="record at offset 0: aggregate 's': ") as caught:
        folded(Whole, fold(0, add, rows=Number), RULES)
    assert reason in str(caught.value)


def test_the_start_of_a_fold_has_the_type_of_its_field() -> None:
    """Another one is refused where it is written."""
    with pytest.raises(ConfigError, match=r"'x', of type str, is the start, and int is expected"):
        folded(Whole, fold("x", lambda sum_, row: sum_, rows=Number))


def test_a_merge_that_fails_is_named() -> None:
    """No record is to blame for it."""
    app = Topology()
    grouped = app.stream("in", Number).group_by(key, name="s").window(hopping("4ms", every="2ms"))
    aggregate = fold(0, lambda sum_, row: sum_ + 1, lambda one, other: one // 0, rows=Number)
    grouped.agg(Whole, v=aggregate).updates().to("out")
    plan = app.plan("shop")
    with pytest.raises(ReducerError, match="merge of a fold fails for 2 and 1: ZeroDivision"):
        InMemory(plan, plan.channels[0], SKIP).run("in", RECORDS)


@pytest.mark.parametrize("op", ["map", "map_batches", "peek", "fold"])
def test_a_function_that_does_not_return_is_interrupted(op: str) -> None:
    """The error names the operator and the record, or the records."""

    def hang(*_: Any) -> Any:
        while True:
            time.sleep(0.01)

    app = Topology()
    stream = app.stream("in", Number)
    if op == "fold":
        grouped = stream.group_by(key, name="s")
        grouped.agg(Whole, v=fold(0, hang, rows=Number)).updates().to("out")
    else:
        getattr(stream, op)(hang, *(() if op == "peek" else (Whole,))).to("out")
    plan = app.plan("shop")
    watch = CallWatch()
    watch.limit(0.2)
    watch.open("c", lambda error: pytest.fail(str(error)))
    run = InMemory(plan, plan.channels[0], SKIP)
    run.fold = TopologyFold(plan, plan.channels[0], run.state, SKIP, 1000, watch)
    wanted = "offset 0 of in-0" if op in {"map", "peek"} else "offsets 0 to 2 of in-0"
    try:
        with pytest.raises(JobTimeoutError, match=wanted):
            run.run("in", RECORDS)
        if op in {"map", "peek"}:
            with pytest.raises(JobTimeoutError, match="offset 1 of in-0"):
                run.run("in", RECORDS)
    finally:
        watch.close()


def test_a_fold_that_fails_for_many_rows_is_called_twice_for_each_at_most() -> None:
    """A micro-batch full of records that fail does not take the square of their number."""
    calls: list[int] = []

    def add(sum_: int, row: Number) -> int:
        calls.append(row.n)
        return sum_ + 1 // (row.n % 2)

    app = Topology()
    grouped = app.stream("in", Number).group_by(key, name="s")
    grouped.agg(Whole, v=fold(0, add, rows=Number)).updates().to("out")
    plan = app.plan("shop")
    run = InMemory(plan, plan.channels[0], SKIP)
    run.run("in", [(b"%d" % (n % 3), b'{"n":%d}' % n, n) for n in range(300)])
    assert [each.rejected for each in run.counts] == [150]
    assert len(calls) == 300 + 150
    assert values_of(run) == [b'{"v":50}'] * 3
