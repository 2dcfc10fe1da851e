"""Values of each row, as trees that are typed, printed, and computed in columns.

An expression has one meaning, wherever it is computed. Null is SQL's: what is computed of it is
null, and ``&`` and ``|`` have three values. An integer that overflows and a division by zero are
faults of the row. Both sides of ``&`` and ``|`` are computed; ``when`` and ``or_else`` compute, of
each row, what they choose.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from headrace.extensions.streams.patterns import check_pattern
from headrace.extensions.streams.types import Type, type_of_value
from headrace.extensions.streams.windows import Span, span_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.extensions.streams.rows import Row

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R", bound="Row")
W = TypeVar("W", int, datetime)


class Part(Enum):
    """The parts of a row beside its fields."""

    KEY = "key"
    """The key of the record, or of the group."""
    TIME = "time"
    """The time of the record, in milliseconds since 1970."""
    WINDOW_START = "window_start"
    """The first millisecond of the window."""
    WINDOW_END = "window_end"
    """The end of the window: of a session, and of a sliding window, its last millisecond."""


@dataclass(frozen=True, slots=True)
class FieldNode:
    """A field of a row."""

    row: type[Row]
    name: str


@dataclass(frozen=True, slots=True)
class PartNode:
    """The parts of a row beside its fields."""

    part: Part


@dataclass(frozen=True, slots=True)
class KeyNode:
    """One of several expressions by which rows are grouped, by its place."""

    place: int


@dataclass(frozen=True, slots=True)
class ValueNode:
    """A constant; ``value`` None is null, whose type is that of what stands beside it."""

    value: Any
    type: Type | None


@dataclass(frozen=True, slots=True)
class CallNode:
    """A function of other values, with what is the same for all rows."""

    function: str
    arguments: tuple[Node, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str) -> Any:
        """Return what the function was given by this name."""
        return dict(self.options)[name]


Node: TypeAlias = FieldNode | PartNode | KeyNode | ValueNode | CallNode


class Expr(Generic[T_co]):
    """A value of each row, computed in columns.

    Two of them are compared with ``==``, which is an expression as well. So one has no truth value:
    ``and``, ``or`` and ``not`` are written ``&``, ``|`` and ``~``.
    """

    __slots__ = ("node",)
    # compared by ==, which makes an expression
    __hash__ = object.__hash__

    def __init__(self, node: Node) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"<{describe(self.node)}>"

    def __bool__(self) -> bool:
        raise TypeError(
            f"{describe(self.node)} is a value of each row, which is not true or false by itself; "
            "write & for and, | for or, ~ for not, and put comparisons in parentheses"
        )

    # --- comparison

    def __eq__(self, other: Expr[T_co] | T_co) -> Expr[bool]:  # type: ignore[override]
        return _call("equal", self, other)

    def __ne__(self, other: Expr[T_co] | T_co) -> Expr[bool]:  # type: ignore[override]
        return _call("not_equal", self, other)

    def __lt__(self, other: Expr[T_co] | T_co) -> Expr[bool]:
        return _call("less", self, other)

    def __le__(self, other: Expr[T_co] | T_co) -> Expr[bool]:
        return _call("less_equal", self, other)

    def __gt__(self, other: Expr[T_co] | T_co) -> Expr[bool]:
        return _call("greater", self, other)

    def __ge__(self, other: Expr[T_co] | T_co) -> Expr[bool]:
        return _call("greater_equal", self, other)

    # --- three-valued logic

    def __and__(self: Expr[bool | None], other: Expr[bool | None] | bool) -> Expr[bool]:
        return _call("and", self, other)

    def __rand__(self: Expr[bool | None], other: bool) -> Expr[bool]:
        return _call("and", other, self)

    def __or__(self: Expr[bool | None], other: Expr[bool | None] | bool) -> Expr[bool]:
        return _call("or", self, other)

    def __ror__(self: Expr[bool | None], other: bool) -> Expr[bool]:
        return _call("or", other, self)

    def __invert__(self: Expr[bool | None]) -> Expr[bool]:
        return _call("not", self)

    # --- arithmetic

    def __add__(self, other: Expr[T_co] | T_co) -> Expr[T_co]:
        """Add numbers, or append text."""
        return _call("add", self, other)

    def __radd__(self, other: T_co) -> Expr[T_co]:  # type: ignore[misc]
        return _call("add", other, self)

    def __sub__(self, other: Expr[T_co] | T_co) -> Expr[T_co]:
        return _call("subtract", self, other)

    def __rsub__(self, other: T_co) -> Expr[T_co]:  # type: ignore[misc]
        return _call("subtract", other, self)

    def __mul__(self, other: Expr[T_co] | T_co) -> Expr[T_co]:
        return _call("multiply", self, other)

    def __rmul__(self, other: T_co) -> Expr[T_co]:  # type: ignore[misc]
        return _call("multiply", other, self)

    def __truediv__(self: Expr[float | None], other: Expr[float | None] | float) -> Expr[float]:
        """Divide as floats. An integer 0 below the line is a fault, a float 0.0 is IEEE's."""
        return _call("divide", self, other)

    def __rtruediv__(self: Expr[float | None], other: float) -> Expr[float]:
        return _call("divide", other, self)

    def __floordiv__(self: Expr[int | None], other: Expr[int | None] | int) -> Expr[int]:
        """Divide integers and round down, as Python does."""
        return _call("floor_divide", self, other)

    def __rfloordiv__(self: Expr[int | None], other: int) -> Expr[int]:
        return _call("floor_divide", other, self)

    def __mod__(self: Expr[int | None], other: Expr[int | None] | int) -> Expr[int]:
        """Return what floor division leaves; it has the sign of ``other``, as in Python."""
        return _call("modulo", self, other)

    def __rmod__(self: Expr[int | None], other: int) -> Expr[int]:
        return _call("modulo", other, self)

    def __neg__(self) -> Expr[T_co]:
        return _call("negate", self)

    # --- null

    def is_null(self) -> Expr[bool]:
        """Return whether the value is missing."""
        return _call("is_null", self)

    def or_else(self: Expr[U | None], other: Expr[U] | U) -> Expr[U]:
        """Return the value, or ``other`` where it is missing."""
        return _call("or_else", self, other)

    # --- text

    def lower(self: Expr[str | None]) -> Expr[str]:
        """Return the text in lower case, as ``str.lower``."""
        return _call("lower", self)

    def upper(self: Expr[str | None]) -> Expr[str]:
        """Return the text in upper case, as ``str.upper``."""
        return _call("upper", self)

    def split(self: Expr[str | None], by: str = " ") -> Expr[list[str]]:
        """Divide the text at each ``by``, as ``str.split``; parts may be empty."""
        if type(by) is not str or not by:
            raise TypeError(f"split(by={by!r}): text is divided at a text of one character or more")
        return _call("split", self, by=by)

    def slice(self: Expr[str | None], start: int, stop: int | None = None) -> Expr[str]:
        """Return the characters from ``start`` up to ``stop``, as ``text[start:stop]``.

        Neither is negative: an end is counted from the beginning.
        """
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and not (type(value) is int and 0 <= value < 2**31):
                raise TypeError(f"slice: {name} is {value!r}; give a number from 0")
        return _call("slice", self, start=start, stop=stop)

    def matches(self: Expr[str | None], pattern: str) -> Expr[bool]:
        r"""Return whether the text has a part that the regular expression describes.

        ``^`` is the beginning of the text and ``$`` its end. Patterns may have what all engines
        read alike: characters, ``.`` for any but a new line, classes, ``\d \D \w \W`` of ASCII,
        groups, ``|``, ``* + ? {m,n}``.
        """
        check_pattern(pattern)
        return _call("matches", self, pattern=pattern)

    def concat(self: Expr[str | None], *others: Expr[str | None] | str) -> Expr[str]:
        """Append texts; null where one of them is."""
        return _call("concat", self, *others)

    # --- lists, and text

    def length(self: Expr[str | None] | Expr[list[Any] | None] | Expr[bytes | None]) -> Expr[int]:
        """Return the number of characters, items or bytes."""
        return _call("length", self)

    @overload
    def contains(self: Expr[str | None], other: Expr[str | None] | str) -> Expr[bool]: ...
    @overload
    def contains(self: Expr[list[U] | None], other: Expr[U] | U) -> Expr[bool]: ...
    def contains(self, other: Any) -> Expr[bool]:
        """Return whether a list has the item, or a text this part."""
        return _call("contains", self, other)

    # --- time

    def floor(self: Expr[W | None], span: Span) -> Expr[W]:
        """Return the time, cut to a multiple of ``span`` since 1970; an integer is milliseconds."""
        return _call("floor", self, span=span_ms(span, "the span", least=1))

    # --- types, and rows within rows

    @overload
    def cast(self, kind: type[int]) -> Expr[int]: ...
    @overload
    def cast(self, kind: type[float]) -> Expr[float]: ...
    @overload
    def cast(self, kind: type[str]) -> Expr[str]: ...
    @overload
    def cast(self, kind: type[bytes]) -> Expr[bytes]: ...
    def cast(self, kind: Any) -> Expr[Any]:
        """Return the value as another type.

        int, float and bool are cast to int and float; int and bytes to text, text to int, float and
        bytes. A float loses what is smaller than 1. What has no such value is a fault of the row.
        """
        found = {int: "int", float: "float", str: "str", bytes: "bytes"}.get(kind)
        if found is None:
            raise TypeError(f"cast({kind!r}): cast to int, float, str or bytes")
        return _call("cast", self, to=found)

    def get(self: Expr[R | None], of: Expr[U]) -> Expr[U]:
        """Return a field of a row within the row: ``Order.address.get(Address.city)``."""
        inner = getattr(of, "node", None)
        if not isinstance(inner, FieldNode):
            raise TypeError(f"get({of!r}): name a field of the inner row, as in Address.city")
        return _call("get", self, row=inner.row, name=inner.name)


@overload
def when(where: Expr[bool | None], then: Expr[T] | T, otherwise: Expr[T] | T) -> Expr[T]: ...
@overload
def when(where: Expr[bool | None], then: Expr[T] | T, otherwise: None = None) -> Expr[T | None]: ...
def when(where: Expr[bool | None], then: Any, otherwise: Any = None) -> Expr[Any]:
    """Return ``then`` where the condition is true, and ``otherwise`` where it is false or null.

    Of each row only the value that is chosen is computed: ``when(a != 0, b // a, 0)`` has no fault.
    """
    return _call("when", where, then, otherwise)


key: Expr[str] = Expr(PartNode(Part.KEY))
time: Expr[int] = Expr(PartNode(Part.TIME))
window_start: Expr[int] = Expr(PartNode(Part.WINDOW_START))
window_end: Expr[int] = Expr(PartNode(Part.WINDOW_END))


def node_of(value: object) -> Node:
    """Return the node of an expression, or of a constant.

    Raises:
        TypeError: it is of a type that no expression has.
    """
    if isinstance(value, Expr):
        return value.node
    if value is None:
        return ValueNode(None, None)
    found = type_of_value(value)
    if found is None:
        raise TypeError(
            f"{value!r} is no value of an expression; take str, int, float, bool, bytes, datetime "
            "or Decimal"
        )
    if isinstance(value, datetime) and value.tzinfo is None:
        raise TypeError(f"{value!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return ValueNode(value, found)


def _call(function: str, *arguments: object, **options: Any) -> Expr[Any]:
    nodes = tuple(map(node_of, arguments))
    return Expr(CallNode(function, nodes, tuple(options.items())))


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and those that it is made of, from left to right."""
    yield node
    if isinstance(node, CallNode):
        for each in node.arguments:
            yield from walk(each)


def substitute(node: Node, found: Mapping[Node, Node]) -> Node:
    """Return the tree with some of its nodes replaced by others, the largest first."""
    if node in found:
        return found[node]
    if isinstance(node, CallNode):
        parts = tuple(substitute(each, found) for each in node.arguments)
        return CallNode(node.function, parts, node.options)
    return node


_SIGNS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "&",
    "or": "|",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "modulo": "%",
}


def describe(node: Node) -> str:
    """Return the expression as it is written in Python."""
    match node:
        case FieldNode():
            return f"{node.row.__name__}.{node.name}"
        case PartNode():
            return node.part.value
        case KeyNode():
            return f"key[{node.place}]"
        case ValueNode():
            return repr(node.value)
    return _describe_call(node)


def _describe_call(node: CallNode) -> str:
    if node.function in _SIGNS:
        left, right = map(_in_parentheses, node.arguments)
        return f"{left} {_SIGNS[node.function]} {right}"
    if node.function in {"not", "negate"}:
        return f"{'~' if node.function == 'not' else '-'}{_in_parentheses(node.arguments[0])}"
    if node.function == "when":
        return f"when({', '.join(map(describe, node.arguments))})"
    if node.function == "get":
        name = f"{node.option('row').__name__}.{node.option('name')}"
        return f"{_in_parentheses(node.arguments[0])}.get({name})"
    first, *others = node.arguments
    options = [f"{name}={value!r}" for name, value in node.options if value is not None]
    inner = ", ".join([*map(describe, others), *options])
    return f"{_in_parentheses(first)}.{node.function}({inner})"


def _in_parentheses(node: Node) -> str:
    text = describe(node)
    is_call = isinstance(node, CallNode) and node.function in {*_SIGNS, "not", "negate"}
    return f"({text})" if is_call else text


def document_of(node: Node) -> dict[str, Any]:
    """Return the expression as a plan has it: JSON that any program can read."""
    match node:
        case FieldNode():
            return {"field": node.name, "row": node.row.__name__}
        case PartNode():
            return {"part": node.part.value}
        case KeyNode():
            return {"key": node.place}
        case ValueNode():
            if node.type is None:
                return {"value": None}
            return {"value": value_document(node.value), **node.type.document()}
    found: dict[str, Any] = {
        "call": node.function,
        "arguments": [document_of(each) for each in node.arguments],
    }
    for name, value in node.options:
        found[name] = value.__name__ if isinstance(value, type) else value
    return found


def value_document(value: Any) -> Any:
    """Return a constant as JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    return str(value) if isinstance(value, Decimal) else value


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
