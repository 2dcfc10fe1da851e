"""Declarations of aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from headrace.extensions.streams.aggregates import (
    MAX_LIMIT,
    Agg,
    collect,
    count,
    distinct,
    fold,
    top,
    total,
)
from headrace.extensions.streams.rows import Field, Row

if TYPE_CHECKING:
    from collections.abc import Callable


class Order(Row):
    """A row with a number and a text."""

    amount: Field[int]
    name: Field[str]


NUMBER, TEXT = Order.amount, Order.name


def test_an_aggregate_names_its_arguments_in_their_order() -> None:
    """The columns that it takes are those of its arguments."""
    assert count().arguments == ()
    assert total(NUMBER).arguments[0] is NUMBER
    of, by = top(3, by=NUMBER, of=TEXT).arguments
    assert of is TEXT
    assert by is NUMBER


def test_a_description_tells_stored_values_apart() -> None:
    """A limit and a kind are in it, and so is whether a fold merges."""
    described = [
        aggregate.describe()
        for aggregate in (
            count(),
            total(NUMBER),
            top(3, by=NUMBER, of=TEXT),
            collect(TEXT, limit=3),
            collect(TEXT, limit=4),
            fold(0, lambda n, _: n + 1, rows=object),
            fold(0, lambda n, _: n + 1, lambda a, b: a + b, rows=object),
        )
    ]
    assert described[0] == {"kind": "count"}
    assert len({str(each) for each in described}) == len(described)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: top(0, by=NUMBER, of=TEXT), ValueError, "top has the limit 0"),
        (lambda: collect(TEXT, limit=MAX_LIMIT + 1), ValueError, "from 1 to 10,000"),
        (lambda: distinct(TEXT, limit=True), TypeError, "and got True"),
        (
            lambda: fold(0, cast("Any", 1), rows=object),
            TypeError,
            "takes a function as add, and got 1",
        ),
        (
            lambda: fold(0, lambda n, _: n, cast("Any", 2), rows=object),
            TypeError,
            "as merge, and got 2",
        ),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    make: Callable[[], Agg[Any]], kind: type[Exception], text: str
) -> None:
    """The error names the aggregate, the value and what is allowed."""
    with pytest.raises(kind, match=text):
        make()
