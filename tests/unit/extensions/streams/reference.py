"""Expressions of one row, computed by Python itself: what the columns have to give as well."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Overflow, Rounded
from typing import TYPE_CHECKING, Any

from headrace.extensions.streams.expressions import CallNode, FieldNode, ValueNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.extensions.streams.expressions import Node


class FaultError(Exception):
    """The row has no value."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def value_of(node: Node, row: Mapping[str, Any]) -> Any:
    """Return the value of an expression that was resolved; None is null.

    Raises:
        FaultError: an integer overflows, is divided by zero, or a cast has no result.
    """
    match node:
        case ValueNode():
            return node.value
        case FieldNode():
            return row[node.name]
        case CallNode(function="when"):
            chosen = node.arguments[1 if value_of(node.arguments[0], row) else 2]
            return value_of(chosen, row)
        case CallNode(function="or_else"):
            found = value_of(node.arguments[0], row)
            return value_of(node.arguments[1], row) if found is None else found
        case CallNode():
            values = [value_of(each, row) for each in node.arguments]
            return (_THREE_VALUED.get(node.function) or _strict)(node, *values)
    raise AssertionError(node)


def _strict(node: CallNode, *values: Any) -> Any:
    """Return null where one of the values is, else what the function makes of them."""
    if None in values:
        return None
    return _FUNCTIONS[node.function](node, *values)


def _and(node: CallNode, left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(node: CallNode, left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


_THREE_VALUED: dict[str, Callable[..., Any]] = {
    "and": _and,
    "or": _or,
    "is_null": lambda node, value: value is None,
}


def _checked(value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise FaultError(value)
    return value


#: As many digits as a column has, and nothing is rounded: no zero at the end either, of which a
#: column has as many as its scale says.
_DECIMALS = Context(prec=38, Emax=999, traps=[Rounded, Overflow])


def _arithmetic(function: str) -> Callable[..., Any]:
    def compute(node: CallNode, left: Any, right: Any) -> Any:
        if isinstance(left, Decimal):
            try:
                return getattr(_DECIMALS, function)(left, right)
            except Rounded:
                raise FaultError(left, right) from None
        made = {
            "add": lambda: left + right,
            "subtract": lambda: left - right,
            "multiply": lambda: left * right,
        }
        return _checked(made[function]())

    return compute


def _divide(node: CallNode, left: float, right: float) -> float:
    if right == 0:
        if type(right) is int:
            raise FaultError(left)
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1, right)
    return float(left) / float(right)


def _whole(node: CallNode, left: int, right: int) -> int:
    if right == 0:
        raise FaultError(left)
    found: int = _checked(left // right if node.function == "floor_divide" else left % right)
    return found


def _matches(node: CallNode, text: str) -> bool:
    # of Python the end of the text is \Z: its $ is before a last new line as well
    pattern = re.sub(r"(\\.)|\$", lambda found: found[1] or r"\Z", node.option("pattern"))
    return re.search(pattern, text, re.ASCII) is not None


def _floor(node: CallNode, value: Any) -> Any:
    span = node.option("span")
    if isinstance(value, datetime):
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        try:
            return value - timedelta(microseconds=micros % (span * 1000))
        except OverflowError:
            raise FaultError(value) from None
    return _checked(value - value % span)


def _cast(node: CallNode, value: Any) -> Any:
    to = node.option("to")
    try:
        if to == "str":
            return value.decode() if isinstance(value, bytes) else str(value)
        if to == "bytes":
            return value.encode() if isinstance(value, str) else value
        if isinstance(value, str):
            shape = r"-?[0-9]+" if to == "int" else r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"
            if not re.fullmatch(shape, value):
                raise FaultError(value)
        return _checked(int(value)) if to == "int" else float(value)
    except (ValueError, OverflowError):
        raise FaultError(value) from None


def _not_equal(node: CallNode, left: Any, right: Any) -> bool:
    return bool(left != right)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "equal": lambda node, left, right: left == right,
    "not_equal": _not_equal,
    "less": lambda node, left, right: left < right,
    "less_equal": lambda node, left, right: left <= right,
    "greater": lambda node, left, right: left > right,
    "greater_equal": lambda node, left, right: left >= right,
    "not": lambda node, value: not value,
    "add": _arithmetic("add"),
    "subtract": _arithmetic("subtract"),
    "multiply": _arithmetic("multiply"),
    "divide": _divide,
    "floor_divide": _whole,
    "modulo": _whole,
    "negate": lambda node, value: (
        value.copy_negate() if isinstance(value, Decimal) else _checked(-value)
    ),
    "lower": lambda node, text: text.lower(),
    "upper": lambda node, text: text.upper(),
    "split": lambda node, text: text.split(node.option("by")),
    "slice": lambda node, text: text[node.option("start") : node.option("stop")],
    "matches": _matches,
    "concat": lambda node, *texts: "".join(texts),
    "length": lambda node, value: len(value),
    # not Python's in, which takes a NaN for itself
    "contains": lambda node, holder, item: (
        item in holder if isinstance(holder, str) else any(each == item for each in holder)
    ),
    "floor": _floor,
    "cast": _cast,
    "get": lambda node, row: row[node.option("name")],
}
