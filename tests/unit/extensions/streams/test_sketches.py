"""Approximate aggregates: their bounds against exact values, and what they depend on."""

from __future__ import annotations

import json
import math
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.extras import Extra
from headrace.extensions.streams import aggregates as agg
from headrace.extensions.streams.aggregates import QUANTILE_ERROR
from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.partials import make_partial
from headrace.streams import (
    Field,
    Row,
    StreamsTest,
    Topology,
    approx_distinct,
    approx_quantile,
    approx_quantiles,
    hopping,
    key,
    session,
    sliding,
    tumbling,
)
from headrace.testing.streams import check_topology
from tests.unit.extensions.streams.columns import KINDS, VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.streams.kernels.partials import Partial, Parts

#: Three times the standard error of a sketch of different values.
DISTINCT_BOUND = 3 * 1.04 / math.sqrt(2**agg.DISTINCT_LOG2_REGISTERS)

MADE: dict[str, agg.Agg[Any]] = {
    "distinct": approx_distinct(VALUE),
    "quantiles": approx_quantiles(VALUE, [0, 0.25, 0.5, 0.99, 1]),
}
if not Extra.DISTINCT.installed:
    del MADE["distinct"]

distinct_only = pytest.mark.skipif(not Extra.DISTINCT.installed, reason="no wheel for this Python")


def part_of(partial: Partial, values: Sequence[Any], kind: pa.DataType) -> Parts:
    """Return the partial of one group with these values, or with a null alone."""
    values = values or [None]
    groups = Groups(np.zeros(len(values), np.int64), 1)
    columns = partial.read_columns([pa.array(values, kind)])
    return partial.reduce(groups, columns, np.zeros(len(values), np.int64))


def stored(partial: Partial, parts: Parts) -> str:
    """Return the one row of a partial as a store has it."""
    return json.dumps(partial.encode(tuple(part[0] for part in parts)))


def from_store(partial: Partial, text: str) -> Parts:
    """Return the partial that a store's row has."""
    made = []
    for value in partial.decode(json.loads(text)):
        part = np.empty(1, object)
        part[0] = value
        made.append(part)
    return tuple(made)


@distinct_only
@pytest.mark.parametrize("size", [0, 1, 10, 300, 384, 385, 1000, 5000, 50_000])
def test_a_number_of_different_values_is_within_its_error(size: int) -> None:
    """Up to 384 it is the number itself, and three standard errors hold above."""
    partial = make_partial(approx_distinct(VALUE), [pa.string()])
    values = [f"user-{number}" for number in range(size)] * 2
    (found,) = partial.result(part_of(partial, values, pa.string())).to_pylist()
    if size <= 384:
        assert found == size
    else:
        assert abs(found - size) <= DISTINCT_BOUND * size


@distinct_only
def test_texts_that_are_empty_count_and_equal_floats_are_one() -> None:
    """No value but null is left out, and two zeros are one value, as two NaNs are."""
    partial = make_partial(approx_distinct(VALUE), [pa.string()])
    parts = part_of(partial, ["", "a", None, ""], pa.string())
    assert partial.result(parts).to_pylist() == [2]
    partial = make_partial(approx_distinct(VALUE), [pa.float64()])
    parts = part_of(partial, [0.0, -0.0, math.nan, -math.nan, 1.0, None], pa.float64())
    assert partial.result(parts).to_pylist() == [3]


@given(
    st.lists(st.floats(-1e15, 1e15) | st.integers(-9, 9).map(float), min_size=1, max_size=200),
    st.floats(0, 1),
)
def test_a_quantile_is_within_the_error_of_the_value_at_its_place(
    values: list[float], at: float
) -> None:
    """The one that a part ``at`` of the values is not above, no farther than 1 % from it."""
    partial = make_partial(approx_quantile(VALUE, at), [pa.float64()])
    (found,) = partial.result(part_of(partial, values, pa.float64())).to_pylist()
    exact = sorted(values)[math.floor(at * (len(values) - 1))]
    # what is lower than the highest by this many powers of ten shares the lowest bucket, and what
    # has no more digits than a subnormal number is 0
    lowest = max(max(map(abs, values)) * 1e-35, sys.float_info.min)
    assert abs(found - exact) <= max(QUANTILE_ERROR * abs(exact) * (1 + 1e-9), lowest)


@pytest.mark.parametrize("size", [100, 20_000])
def test_quantiles_of_many_values_are_within_the_error(size: int) -> None:
    """Each of them is, of values over seven powers of ten."""
    random = Random(size)
    values = [random.lognormvariate(2, 3) for _ in range(size)]
    places = [0.01, 0.5, 0.9, 0.99, 0.999]
    partial = make_partial(approx_quantiles(VALUE, places), [pa.float64()])
    (found,) = partial.result(part_of(partial, values, pa.float64())).to_pylist()
    exact = [sorted(values)[math.floor(at * (size - 1))] for at in places]
    assert found == pytest.approx(exact, rel=QUANTILE_ERROR)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("kind", ["int", "float", "decimal", "text"])
@given(data=st.data())
def test_the_stored_row_depends_on_the_values_alone(
    name: str, kind: str, data: st.DataObject
) -> None:
    """Not on their order, nor on how they were cut, merged, and stored in between."""
    if kind == "text" and name == "quantiles":
        return
    arrow, strategy = KINDS[kind]
    if kind == "float":
        strategy = st.floats(allow_nan=False, allow_infinity=False)
    partial = make_partial(MADE[name], [arrow])
    values = data.draw(st.lists(st.none() | strategy, max_size=40))
    more = data.draw(st.sampled_from([0, 0, 900]))
    if more and kind == "int":
        values += [1000 + number % 700 for number in range(more)]
    wanted = stored(partial, part_of(partial, values, arrow))
    mixed = data.draw(st.permutations(values)) if len(values) < 50 else values[::-1]
    cut = data.draw(st.integers(0, len(mixed)))
    one, other = (part_of(partial, some, arrow) for some in (mixed[:cut], mixed[cut:]))
    assert stored(partial, partial.merge(one, other)) == wanted
    assert stored(partial, partial.merge(other, one)) == wanted
    first = from_store(partial, stored(partial, one))
    groups = Groups(np.zeros(len(mixed) - cut, np.int64), 1)
    columns = partial.read_columns([pa.array(mixed[cut:], arrow)])
    times = np.zeros(len(mixed) - cut, np.int64)
    if len(groups):
        assert stored(partial, partial.extend(first, groups, columns, times)) == wanted
        (each,) = partial.extend_scan(first, groups, columns, times)
        assert stored(partial, (each[-1:],)) == wanted
    # what was merged and extended is as it was
    assert stored(partial, one) == stored(partial, first)


def test_a_histogram_has_no_more_buckets_than_its_bound() -> None:
    """Over all floats the lowest become one; the highest stay within the error."""
    random = Random(3)
    values = [10.0 ** random.uniform(-300, 300) for _ in range(20_000)]
    partial = make_partial(approx_quantiles(VALUE, [0.95, 0.999]), [pa.float64()])
    wanted = stored(partial, part_of(partial, values, pa.float64()))
    assert len(json.loads(wanted)[2]) <= 2 * agg.QUANTILE_BUCKETS
    assert len(wanted) < 100_000
    for cut in (1, 100, 10_000):
        parts = [part_of(partial, some, pa.float64()) for some in (values[cut:], values[:cut])]
        again = partial.merge(from_store(partial, stored(partial, parts[0])), parts[1])
        assert stored(partial, again) == wanted
    (found,) = partial.result(part_of(partial, values, pa.float64())).to_pylist()
    exact = [sorted(values)[math.floor(at * (len(values) - 1))] for at in (0.95, 0.999)]
    assert found == pytest.approx(exact, rel=QUANTILE_ERROR)


@pytest.mark.parametrize("name", MADE)
def test_a_row_of_another_version_is_refused(name: str) -> None:
    """The error has both versions; nothing is read as what it is not."""
    partial = make_partial(MADE[name], [pa.int64()])
    assert partial.encode(partial.decode([])) == []
    with pytest.raises(HeadraceError, match="version 2, and 1 is read"):
        partial.decode([2, "AAAA"])


class Visit(Row):
    user: Field[str]
    millis: Field[float]


class Report(Row):
    page: Field[str]
    median: Field[float | None]
    high: Field[list[float]]


class Reach(Report):
    users: Field[int]


WINDOWS: dict[str, Any] = {
    "groups": None,
    "tumbling": tumbling("10s", grace="5s"),
    "hopping": hopping("10s", every="4s", grace="5s"),
    "sliding": sliding("4s", grace="5s"),
    "session": session("3s", grace="5s"),
}


def report(kind: str) -> Topology:
    """Return a topology with approximate aggregates, whose rows come out in all ways there are."""
    app = Topology()
    grouped = app.stream("visits", Visit).group_by(key, name="report")
    windows = WINDOWS[kind]
    if windows is not None:
        grouped = grouped.window(windows)
    fields: dict[str, Any] = {
        "page": key,
        "median": approx_quantile(Visit.millis, 0.5),
        "high": approx_quantiles(Visit.millis, [0.9, 0.99]),
    }
    if Extra.DISTINCT.installed:
        table: Any = grouped.agg(Reach, **fields, users=approx_distinct(Visit.user))
    else:
        table = grouped.agg(Report, **fields)
    table.each().to("each")
    table.updates().to("updates")
    if windows is not None:
        table.final().to("final")
    return app


def visits(seed: int, count: int) -> list[tuple[str, str, dict[str, Any], int]]:
    """Return records of a topic; some are late."""
    random = Random(seed)
    return [
        (
            "visits",
            random.choice("ab"),
            {"user": f"u{random.randrange(40)}", "millis": round(random.expovariate(0.01), 3)},
            max(100 * at + random.randrange(-3000, 3000), 0),
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("kind", WINDOWS)
def test_results_and_rows_do_not_depend_on_cuts_restarts_and_failures(kind: str) -> None:
    """Each change, final rows and the state are the same, in all windows."""
    check_topology(lambda: report(kind), visits(1, 300), runs=8)


def test_a_window_of_many_users_is_within_the_bounds() -> None:
    """A final row has what is counted exactly, within the errors that are promised."""
    random = Random(5)
    test = StreamsTest(report("tumbling"), batch=500)
    users: set[str] = set()
    millis: list[float] = []
    for at in range(5000):
        user, took = f"u{random.randrange(3000)}", random.lognormvariate(3, 1)
        users.add(user)
        millis.append(took)
        test.pipe("visits", Visit(user=user, millis=took), key="a", time=at)
    test.pipe("visits", Visit(user="later", millis=1.0), key="a", time=60_000)
    final = test.read("final")[0].value
    exact = [sorted(millis)[math.floor(at * 4999)] for at in (0.5, 0.9, 0.99)]
    assert [final["median"], *final["high"]] == pytest.approx(exact, rel=QUANTILE_ERROR)
    if Extra.DISTINCT.installed:
        assert abs(final["users"] - len(users)) <= DISTINCT_BOUND * len(users)


class Ratio(Row):
    of: Field[float]
    by: Field[float]


class Middle(Row):
    middle: Field[float | None]


def test_a_number_without_a_bucket_is_a_fault_of_its_record() -> None:
    """NaN and what is infinite are left out by the policy, and the others are counted."""
    app = Topology()
    grouped = app.stream("ratios", Ratio).group_by(key, name="middle")
    grouped.agg(Middle, middle=approx_quantile(Ratio.of / Ratio.by, 0.5)).to("out")
    test = StreamsTest(app, batch=10, on_poison="drop")
    for of, by in ((1.0, 0.0), (4.0, 2.0), (0.0, 0.0), (-1.0, 0.0)):
        test.pipe("ratios", Ratio(of=of, by=by), key="a")
    assert [out.value["middle"] for out in test.read("out")] == [pytest.approx(2, rel=0.01)]
    assert [str(each.offset) for each in test.poison] == ["0", "2", "3"]
    assert "inf has no bucket among quantiles" in str(test.poison[0])


@pytest.mark.parametrize(
    ("make", "module", "library"),
    [
        (lambda: approx_quantile(Visit.millis, 0.5), "ddsketch", "ddsketch"),
        (lambda: approx_distinct(Visit.user), "datasketches", "datasketches"),
    ],
)
def test_a_missing_library_is_an_error_of_the_configuration(
    make: Any, module: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the operator, the field, the library and the extra that brings it."""
    monkeypatch.setitem(sys.modules, module, None)
    grouped = Topology().stream("visits", Visit).group_by(key, name="report")
    row = Report if library == "ddsketch" else Reach
    field = "median" if library == "ddsketch" else "users"
    with pytest.raises(ConfigError) as raised:
        grouped.agg(row, **{field: make()})
    assert f"takes {library}, which is not installed" in str(raised.value)
    assert "pip install 'headrace[sketches]'" in str(raised.value)
    assert str(raised.value).startswith(f"agg of 'report': field {field}: approx_")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: approx_quantile(Visit.millis, 1.1), ValueError, "has to be from 0 to 1"),
        (lambda: approx_quantile(Visit.millis, True), TypeError, "got True"),
        (lambda: approx_quantiles(Visit.millis, []), ValueError, "one part of the values"),
        (lambda: approx_quantiles(Visit.millis, [0.5, math.nan]), ValueError, "the part nan"),
    ],
)
def test_places_of_quantiles_are_checked(make: Any, kind: type[Exception], text: str) -> None:
    """A place is a number from 0 to 1, and there is one at least."""
    with pytest.raises(kind, match=text):
        make()


def test_a_store_of_quantiles_goes_on_when_others_are_asked_for() -> None:
    """No stored row depends on it, so the store goes on."""
    prints = set()
    for at in (0.5, 0.99):
        app = Topology()
        grouped = app.stream("visits", Visit).group_by(key, name="report")
        grouped.agg(Middle, middle=approx_quantile(Visit.millis, at)).to("out")
        prints.add(app.plan().stores[0].fingerprint)
    assert len(prints) == 1
