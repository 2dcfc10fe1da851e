from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.expressions import Expr, FieldNode, describe, when
from headrace.extensions.streams.inference import Scope, resolve
from headrace.extensions.streams.rows import Field, Row, field
from headrace.extensions.streams.types import Kind
from tests.unit.extensions.streams.reference import FaultError, value_of
from tests.unit.strategies import CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Inner(Row):
    city: Field[str]
    floor: Field[int | None]


class Sample(Row):
    i: Field[int | None]
    j: Field[int]
    f: Field[float | None]
    g: Field[float]
    t: Field[str | None]
    u: Field[str]
    b: Field[bool | None]
    d: Field[Decimal | None] = field(scale=2)
    m: Field[datetime | None]
    y: Field[bytes | None]
    texts: Field[list[str] | None]
    numbers: Field[list[float] | None]
    r: Field[Inner | None]


SCOPE = Scope((Sample,))

_EDGES = [0, 1, -1, 2, 3, -7, 2**63 - 1, -(2**63), 2**53 + 1, 2**31, -(2**62), 1000]
INTS = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -(2.0**63), 2.0**63, math.nan]) | st.floats()
TEXTS = (
    st.sampled_from(
        ["", " ", "a b", "İSTANBUL", "straße ΣΑΣ", "-12", "007", "1e5", "9" * 19, "a\n"]
    )
    | st.text(st.sampled_from("ab 0-e.\nßéǅ😀"), max_size=6)
    | st.text(CHARACTERS, max_size=4)
)
_MOST = Decimal((0, (9,) * 38, -2))
DECIMALS = st.sampled_from([_MOST, _MOST.copy_negate(), Decimal("0.00"), Decimal("1.25")]) | (
    st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -2))
    )
)
DATETIMES = st.sampled_from(
    [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 1, UTC)]
) | (st.datetimes(timezones=st.just(UTC)))
BYTES = st.sampled_from([b"", b"\xff", "é".encode()]) | st.binary(max_size=4)


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ROWS = st.fixed_dictionaries(
    {
        "i": _or_null(INTS),
        "j": INTS,
        "f": _or_null(FLOATS),
        "g": FLOATS,
        "t": _or_null(TEXTS),
        "u": TEXTS,
        "b": st.sampled_from([None, True, False]),
        "d": _or_null(DECIMALS),
        "m": _or_null(DATETIMES),
        "y": _or_null(BYTES),
        "texts": _or_null(st.lists(TEXTS, max_size=3)),
        "numbers": _or_null(st.lists(FLOATS, max_size=3)),
        "r": _or_null(st.fixed_dictionaries({"city": TEXTS, "floor": _or_null(INTS)})),
    }
)

PATTERNS = [
    "a",
    "^a",
    "b$",
    "^$",
    r"\d+",
    r"[^a\-]b?",
    "(?:a|é)+ ",
    ".",
    r"^.{2,3}$",
    r"\W",
    "ß|[ä-é]",
]


@st.composite
def expressions(draw: st.DrawFn, kind: Kind, depth: int) -> Expr[Any]:
    """Draw an expression of a kind over the fields of a sample."""

    def inner(of: Kind) -> Expr[Any]:
        return draw(expressions(of, depth - 1))

    def operand(of: Kind) -> Any:
        constants = {
            Kind.INT: INTS,
            Kind.FLOAT: FLOATS | st.integers(-5, 5),
            Kind.TEXT: TEXTS,
            Kind.BOOL: st.booleans(),
            Kind.DECIMAL: st.decimals(-100, 100, places=2) | st.integers(-5, 5),
            Kind.DATETIME: DATETIMES,
            Kind.BYTES: BYTES,
        }
        return draw(constants[of]) if draw(st.integers(0, 3)) == 0 else inner(of)

    leaves: dict[Kind, Sequence[Expr[Any]]] = {
        Kind.INT: [Sample.i, Sample.j],
        Kind.FLOAT: [Sample.f, Sample.g],
        Kind.TEXT: [Sample.t, Sample.u],
        Kind.BOOL: [Sample.b],
        Kind.DECIMAL: [Sample.d],
        Kind.DATETIME: [Sample.m],
        Kind.BYTES: [Sample.y],
    }
    choice = draw(st.integers(0, 9)) if depth else 0
    if choice == 0:
        return draw(st.sampled_from(leaves[kind]))
    if choice == 1:
        return when(inner(Kind.BOOL), inner(kind), draw(st.sampled_from([None, operand(kind)])))
    if choice == 2:
        return inner(kind).or_else(operand(kind))
    return _of_kind(draw, kind, inner, operand)


def _pick(draw: st.DrawFn, *ways: Callable[[], Expr[Any]]) -> Expr[Any]:
    way: Callable[[], Expr[Any]] = draw(st.sampled_from(ways))
    return way()


def _of_kind(draw: st.DrawFn, kind: Kind, inner: Any, operand: Any) -> Expr[Any]:
    left: Expr[Any] = inner(kind)
    if kind in {Kind.INT, Kind.FLOAT, Kind.DECIMAL}:
        ways = {
            Kind.INT: ["+", "-", "*", "//", "%", "neg", "cast", "length", "floor", "get", "items"],
            Kind.FLOAT: ["+", "-", "*", "/", "ratio", "neg", "cast"],
            Kind.DECIMAL: ["+", "-", "neg"],
        }
        return _number(draw(st.sampled_from(ways[kind])), draw, left, inner, operand(kind))
    if kind is Kind.TEXT:
        return _pick(
            draw,
            left.lower,
            left.upper,
            lambda: left + operand(Kind.TEXT),
            lambda: left.concat(inner(Kind.TEXT), "-"),
            lambda: left.slice(draw(st.integers(0, 3)), draw(st.none() | st.integers(0, 5))),
            lambda: inner(Kind.INT).cast(str),
            lambda: inner(Kind.BYTES).cast(str),
            lambda: Sample.r.get(Inner.city),
        )
    if kind is Kind.BOOL:
        return _pick(
            draw,
            lambda: left & operand(Kind.BOOL),
            lambda: left | operand(Kind.BOOL),
            lambda: ~left,
            lambda: left == operand(Kind.BOOL),
            lambda: inner(draw(st.sampled_from(_COMPARED))).is_null(),
            lambda: inner(Kind.TEXT).matches(draw(st.sampled_from(PATTERNS))),
            lambda: inner(Kind.TEXT).contains(draw(TEXTS)),
            lambda: Sample.texts.contains(operand(Kind.TEXT)),
            lambda: Sample.numbers.contains(operand(Kind.FLOAT)),
            lambda: inner(Kind.TEXT).split("a").contains(operand(Kind.TEXT)),
            *[lambda: _compared(draw, inner, operand)] * 4,
        )
    if kind is Kind.DATETIME:
        return left.floor(draw(st.sampled_from(["1ms", "1m", "7d"])))
    return inner(Kind.TEXT).cast(bytes)  # type: ignore[no-any-return]


_CAST = [Kind.TEXT, Kind.BOOL, Kind.INT, Kind.FLOAT]
_COMPARED = [Kind.INT, Kind.FLOAT, Kind.TEXT, Kind.DECIMAL, Kind.DATETIME, Kind.BYTES]


def _compared(draw: st.DrawFn, inner: Any, operand: Any) -> Expr[bool]:
    kind = draw(st.sampled_from(_COMPARED))
    left, right = inner(kind), operand(kind)
    return _pick(
        draw,
        lambda: left == right,
        lambda: left != right,
        lambda: left < right,
        lambda: left <= right,
        lambda: left > right,
        lambda: left >= right,
    )


def _number(way: str, draw: st.DrawFn, left: Any, inner: Any, right: Any) -> Expr[Any]:
    made: dict[str, Any] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
        "//": lambda: left // right,
        "%": lambda: left % right,
        "neg": lambda: -left,
        "ratio": lambda: inner(Kind.INT) / inner(Kind.INT),
        "cast": lambda: inner(draw(st.sampled_from(_CAST))).cast(int if _is_int(left) else float),
        "length": lambda: inner(draw(st.sampled_from([Kind.TEXT, Kind.BYTES]))).length(),
        "floor": lambda: left.floor(draw(st.sampled_from(["1ms", "1m", "7d"]))),
        "get": lambda: Sample.r.get(Inner.floor),
        "items": Sample.texts.length,
    }
    found: Expr[Any] = made[way]()
    return found


def _is_int(expression: Expr[Any]) -> bool:
    return resolve(expression.node, SCOPE).type.kind is Kind.INT


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[Any, pa.Array]:
    """Return samples in columns, as expressions name them."""
    return {
        FieldNode(Sample, name): pa.array([row[name] for row in rows], each.type.arrow())
        for name, each in Sample.__fields__.items()
    }


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return bool(left == right)


@pytest.mark.parametrize("kind", [each for each in Kind if each not in {Kind.LIST, Kind.ROW}])
def test_columns_have_what_python_computes_of_each_row(kind: Kind) -> None:
    """Random expressions have the values, nulls and faults of the reference, row by row."""

    @settings(max_examples=int(os.environ.get("HEADRACE_MODEL_EXAMPLES", "40")))
    @given(expressions(kind, 3), st.lists(ROWS, max_size=5))
    def check(expression: Expr[Any], rows: list[Mapping[str, Any]]) -> None:
        node = resolve(expression.node, SCOPE).node
        found = evaluate(node, columns_of(rows), len(rows))
        values = found.values.to_pylist()
        assert len(values) == len(rows)
        for place, row in enumerate(rows):
            try:
                expected = value_of(node, row)
            except FaultError:
                assert place in found.faults, describe(node)
            else:
                assert place not in found.faults, describe(node)
                assert _same(values[place], expected), describe(node)

    check()
