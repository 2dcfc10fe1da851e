from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from types import new_class
from typing import Any

import pytest

from headrace.extensions.streams.expressions import describe, key, time, when
from headrace.extensions.streams.inference import Scope, resolve
from headrace.extensions.streams.patterns import check_pattern
from headrace.extensions.streams.rows import Field, Row, field


class Address(Row):
    city: Field[str]


class Order(Row):
    id: Field[str]
    amount: Field[float | None]
    count: Field[int] = field(default=3, name="n")
    price: Field[Decimal | None] = field(scale=2)
    address: Field[Address | None]
    tags: Field[list[str]]
    paid: Field[bool]
    at: Field[datetime | None]


SCOPE = Scope((Order,))

#: The class for expressions that a type checker refuses as well.
order: Any = Order


def make(**members: Any) -> type:
    """Return a row class with these annotations, and with defaults where a pair is given."""

    def fill(body: dict[str, Any]) -> None:
        body["__annotations__"] = {
            name: each[0] if isinstance(each, tuple) else each for name, each in members.items()
        }
        body.update({name: each[1] for name, each in members.items() if isinstance(each, tuple)})
        body["__module__"] = __name__

    return new_class("Made", (Row,), {}, fill)


def test_an_instance_has_values_and_its_class_has_expressions() -> None:
    """A field is an expression of the class, a value of an instance, or its default."""
    made = Order(id="a", amount=1.5, price=None, address=None, tags=["x"], paid=True, at=None)
    assert (made.id, made.count, made.price) == ("a", 3, None)
    assert describe(Order.id.node) == "Order.id"
    assert made == Order(
        id="a", amount=1.5, price=None, address=None, tags=["x"], paid=True, at=None
    )
    assert made != Order(
        id="b", amount=1.5, price=None, address=None, tags=["x"], paid=True, at=None
    )
    assert repr(Address(city="x")) == "Address(city='x')"


def test_a_row_of_a_row_has_the_fields_of_both() -> None:
    """A field of a base class is one of the class that derives from it."""

    class Parcel(Address):
        weight: Field[int]

    assert list(Parcel.__fields__) == ["city", "weight"]
    assert describe(Parcel.city.node) == "Parcel.city"


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, "Address: city is missing"),
        ({"city": "a", "zip": 1}, "no field 'zip'; its fields: city"),
    ],
)
def test_an_instance_with_other_fields_is_refused(values: dict[str, Any], part: str) -> None:
    """The error names the field that is missing, or that is not known."""
    with pytest.raises(TypeError, match=part):
        Address(**values)


@pytest.mark.parametrize(
    ("members", "part"),
    [
        ({"a": "str"}, r"Made\.a: str is no field; write a: Field\[str\]"),
        ({"a": "Field[set]"}, r"Made\.a: set is no type of a field; take str, int"),
        ({"a": "Field[list]"}, r"Made\.a: list is no type of a field; take list\[str\]"),
        ({"a": "Field[int | str]"}, r"has several types; take one, or one \| None"),
        ({"a": "Field[list[int | None]]"}, r"null among its items; write list\[int\]"),
        ({"a": "Field[Decimal]"}, r"a Decimal needs its digits after the point"),
        ({"a": "Field[Unknown]"}, r"is not known in .*test_rows.*at the top level"),
        ({"_a": "Field[int]"}, r"a field's name begins with a letter"),
        ({"a": ("Field[int]", 3)}, r"write the default 3 as field\(default=3\)"),
        ({"a": ("Field[int]", field(default="3"))}, r"the default '3' is no int"),
        ({"a": ("Field[int]", field(default=True))}, r"the default True is no int"),
        ({"a": ("Field[float]", field(default=1))}, r"the default 1 is an int; write 1\.0"),
        ({"a": ("Field[int]", field(default=None))}, r"the default None is no int"),
        ({"a": ("Field[list[int]]", field(default=[]))}, r"has no default; write list\[int\] \|"),
        (
            {"a": ("Field[Decimal]", field(default=Decimal("1.25"), scale=1))},
            r"has more than 1 digits",
        ),
        (
            {"a": "Field[int]", "b": ("Field[int]", field(name="a"))},
            r"two fields have the name 'a'",
        ),
    ],
)
def test_a_declaration_that_is_no_field_is_refused(members: dict[str, Any], part: str) -> None:
    """The error names the class and the field, and what to write."""
    with pytest.raises(TypeError, match=part):
        make(**members)


@pytest.mark.parametrize(
    ("expression", "text", "kind"),
    [
        (order.amount * 2 > 10, "(Order.amount * 2.0) > 10.0", "bool | None"),
        (10 - order.count, "10 - Order.count", "int"),
        (order.count / 2, "Order.count / 2", "float"),
        (order.price + 1, "Order.price + Decimal('1.00')", "Decimal(scale=2) | None"),
        (order.price > Decimal("1.5"), "Order.price > Decimal('1.50')", "bool | None"),
        (order.amount.or_else(1), "Order.amount.or_else(1.0)", "float"),
        (when(order.paid, 1, 2.5), "when(Order.paid, 1.0, 2.5)", "float"),
        (when(order.paid, order.id), "when(Order.paid, Order.id, None)", "str | None"),
        (~order.paid & (order.id == "a"), "(~Order.paid) & (Order.id == 'a')", "bool"),
        (order.address.get(Address.city), "Order.address.get(Address.city)", "str | None"),
        (order.id.split(","), "Order.id.split(by=',')", "list[str]"),
        (order.tags.contains("x"), "Order.tags.contains('x')", "bool"),
        (order.count.cast(float), "Order.count.cast(to='float')", "float"),
        (order.amount.is_null(), "Order.amount.is_null()", "bool"),
        (order.at.floor("1h"), "Order.at.floor(span=3600000)", "datetime | None"),
    ],
)
def test_a_constant_has_the_type_of_what_is_beside_it(
    expression: Any, text: str, kind: str
) -> None:
    """An expression is printed as it is written, with its type, null included."""
    found = resolve(expression.node, SCOPE)
    assert (describe(found.node), str(found.type)) == (text, kind)


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        (order.id > 10, "Order.id > 10: str and int are two types; cast one of them"),
        (order.count + 1.5, "int and float are two types"),
        (order.amount % 2, r"Order.amount % 2: float \| None is not divided to whole numbers"),
        (order.id - "a", "str is not added, subtracted or multiplied"),
        (order.price * order.price, "has more digits than there are; cast to float"),
        (order.price + Decimal("0.001"), "has more than 2 digits after the point"),
        (order.paid < True, "bool is not ordered"),
        (order.tags == order.tags, r"list\[str\] is not compared with =="),
        (order.id & True, "str is no condition; put comparisons in parentheses"),
        (order.id == None, r"nothing is known of null; ask for it with is_null\(\)"),  # noqa: E711
        (order.count + 2**63, "is no integer of 64 bits"),
        (order.id.concat("\ud800"), "has a surrogate, so is no text"),
        (order.tags.contains(1), r"a list\[str\] has str in it, not int"),
        (order.id.contains(order.id), "a text is searched for a constant"),
        (order.amount.cast(str), r"float \| None is not cast to str"),
        (order.count.get(Address.city), "int is no Address"),
        (
            Address.city.lower(),
            "Address.city is no field of the rows that come in, which are Order",
        ),
        (key.lower(), "key: there is none here"),
        (when(order.paid, None, None), "there is only null; give a value"),
        (when(order.count, 1, 2), "int is no condition"),
    ],
)
def test_an_expression_of_other_types_is_refused(expression: Any, part: str) -> None:
    """The error shows the part that does not fit, and why."""
    with pytest.raises(TypeError, match=part):
        resolve(expression.node, SCOPE)


def test_an_expression_has_no_truth_value() -> None:
    """``and`` and chained comparisons are refused with what to write."""
    with pytest.raises(TypeError, match="write & for and"):
        assert 1 < Order.count < 3
    with pytest.raises(TypeError, match="is no value of an expression"):
        Order.count == object()  # noqa: B015
    with pytest.raises(TypeError, match="has no time zone"):
        Order.at == datetime(2020, 1, 1)  # noqa: B015, DTZ001
    assert repr(time) == "<time>"


@pytest.mark.parametrize(
    "pattern",
    ["a+b?", "^[a-z0-9._-]+$", r"\d{2,3}\.", "(?:a|é)*", "[^a-c]", r"[\]\\]", "a{0,}", "|"],
)
def test_a_pattern_that_all_engines_read_alike_is_taken(pattern: str) -> None:
    """Characters, classes, groups, alternatives and repeats are."""
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *[r"\s", r"\b", "(?i)a", "(?=a)", r"(a)\1", "a*?", "a*+", "a**", "[[:alpha:]]", "[a&&b]"],
        *["(a", "a)", "[a", "[]", "[b-a]", "*a", "a{2,1}", "a{1001}", "{", "^*", "a\\"],
        *["(?P<x>a)", "((a{1000}){1000}){10}"],
    ],
)
def test_a_pattern_that_engines_read_otherwise_is_refused(pattern: str) -> None:
    """The error shows the pattern, and what patterns may have or that it is too large."""
    with pytest.raises(TypeError, match=r"^matches\(.*; (patterns may have|make it shorter)"):
        check_pattern(pattern)
