"""The type of an expression where it stands: which rows it may name, and what the key is."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from headrace.extensions.streams.expressions import (
    CallNode,
    FieldNode,
    KeyNode,
    Part,
    PartNode,
    ValueNode,
    describe,
)
from headrace.extensions.streams.types import (
    BOOL,
    BYTES,
    COMPARABLE,
    DIGITS,
    FLOAT,
    INT,
    LEAST_INT,
    MOST_INT,
    NUMBERS,
    ORDERED,
    TEXT,
    Kind,
    Type,
    list_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.rows import Row


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that an expression may use.

    ``missing`` are rows that may not be there, ``keys`` the types of a group's key. ``parts`` has
    the types of key, time and window where the operator knows them.
    """

    rows: tuple[type[Row], ...]
    missing: frozenset[type[Row]] = frozenset()
    parts: tuple[tuple[Part, Type], ...] = ()
    keys: tuple[Type, ...] = ()
    hints: tuple[tuple[Part, str], ...] = field(default=())


class Resolved(NamedTuple):
    """An expression whose constants have the types of what stands beside them, and its own type."""

    node: Node
    type: Type


def resolve(node: Node, scope: Scope) -> Resolved:
    """Return an expression with the types that it has in a place.

    Raises:
        TypeError: a part of it is not known here, or does not fit what is done with it; the text
            shows that part as it is written, and the next step.
    """
    match node:
        case FieldNode():
            return Resolved(node, _field_type(node, scope))
        case PartNode():
            return Resolved(node, _part_type(node, scope))
        case KeyNode():
            return Resolved(node, scope.keys[node.place])
        case ValueNode():
            return _resolved_value(node)
    return _resolved_call(node, scope)


def _field_type(node: FieldNode, scope: Scope) -> Type:
    if node.row not in scope.rows:
        names = " and ".join(each.__name__ for each in scope.rows)
        raise TypeError(f"{describe(node)} is no field of the rows that come in, which are {names}")
    found = node.row.__fields__[node.name].type
    return found.or_null(node.row in scope.missing)


def _part_type(node: PartNode, scope: Scope) -> Type:
    found = dict(scope.parts).get(node.part)
    if found is None:
        hint = dict(scope.hints).get(node.part)
        if hint is None:
            windowed = node.part in {Part.WINDOW_START, Part.WINDOW_END}
            hint = "there is none without .window(...)" if windowed else "there is none here"
        raise TypeError(f"{node.part.value}: {hint}")
    return found


def _resolved_value(node: ValueNode) -> Resolved:
    if node.type is None:
        raise TypeError("None has no type here; ask for null with is_null()")
    if type(node.value) is int and not LEAST_INT <= node.value <= MOST_INT:
        raise TypeError(f"{node.value} is no integer of 64 bits")
    if isinstance(node.value, str):
        try:
            node.value.encode()
        except UnicodeEncodeError:
            raise TypeError(f"{node.value!a} has a surrogate, so is no text") from None
    return Resolved(node, node.type)


def _resolved_call(node: CallNode, scope: Scope) -> Resolved:
    first = 1 if node.function == "when" else 0
    found = [resolve(each, scope) for each in node.arguments[:first]]
    others = node.arguments[first:]
    known = [None if isinstance(each, ValueNode) else resolve(each, scope) for each in others]
    try:
        beside = _beside_constants(node, others, known)
        for argument, resolved in zip(others, known, strict=True):
            if resolved is None:
                assert isinstance(argument, ValueNode), "the others are resolved"
                resolved = _converted(argument, node, beside)  # noqa: PLW2901
            found.append(resolved)
        arguments = tuple(each.node for each in found)
        call = CallNode(node.function, arguments, node.options)
        return Resolved(call, _RULES[node.function](call, [each.type for each in found]))
    except ValueError as error:  # of this call; one of its arguments has a TypeError by now
        raise TypeError(f"{describe(node)}: {error}") from None


def _beside_constants(
    node: CallNode, arguments: Sequence[Node], known: Sequence[Resolved | None]
) -> Type:
    """Return the type that constants among the arguments should have."""
    found = next((each.type for each in known if each is not None), None)
    if found is None:
        types = [each.type for each in arguments if isinstance(each, ValueNode) and each.type]
        if not types:
            raise ValueError("there is only null; give a value")
        return next((each for each in types if each.kind is Kind.FLOAT), types[0])
    if node.function == "contains" and found.item is not None:
        return found.item
    return found


def _converted(node: ValueNode, call: CallNode, beside: Type) -> Resolved:
    """Return a constant as a value of the type of what is beside it, where it is one.

    An int beside floats is a float, and a Decimal, or an int beside one, has its scale.
    """
    if node.type is None:
        if call.function not in {"when", "or_else"}:
            raise ValueError("nothing is known of null; ask for it with is_null()")
        return Resolved(ValueNode(None, beside.required), beside.or_null())
    if beside.kind is Kind.FLOAT and type(node.value) is int:
        return Resolved(ValueNode(float(node.value), FLOAT), FLOAT)
    if beside.scale is not None and node.type.kind in {Kind.DECIMAL, Kind.INT}:
        found = beside.required
        return Resolved(ValueNode(_with_scale(node.value, beside.scale), found), found)
    return _resolved_value(node)


def _with_scale(constant: Decimal | int, scale: int) -> Decimal:
    """Return a constant as a decimal of a column."""
    sign, digits, exponent = Decimal(constant).as_tuple()
    assert isinstance(exponent, int), "type_of_value knows no infinite ones"
    moved = exponent + scale
    if moved < 0 and any(digits[moved:]):
        raise ValueError(f"{constant!r} has more than {scale} digits after the point")
    kept = (*digits, *(0,) * moved) if moved >= 0 else digits[:moved]
    if len(kept) > DIGITS:
        raise ValueError(f"{constant!r} has more than {DIGITS} digits")
    return Decimal((sign, kept or (0,), -scale))


# --- rules: what a function takes and yields ----------------------------------------------------


def _same(types: Sequence[Type]) -> Type:
    """Return the one type of all, with null if one of them may be."""
    first = types[0].required
    for each in types:
        if each.required != first:
            raise ValueError(f"{first} and {each.required} are two types; cast one of them")
    return first.or_null(any(each.nullable for each in types))


def _require(found: Type, kinds: set[Kind], doing: str) -> None:
    if found.kind not in kinds:
        names = ", ".join(sorted(each.value for each in kinds))
        raise ValueError(f"{found} is not {doing}; that is for {names}")


def _comparison(kinds: set[Kind], doing: str) -> Callable[[CallNode, list[Type]], Type]:
    def rule(node: CallNode, types: list[Type]) -> Type:
        found = _same(types)
        _require(found, kinds, doing)
        return BOOL.or_null(found.nullable)

    return rule


def _logic(node: CallNode, types: list[Type]) -> Type:
    for each in types:
        if each.kind is not Kind.BOOL:
            raise ValueError(f"{each} is no condition; put comparisons in parentheses")
    return _same(types)


def _arithmetic(node: CallNode, types: list[Type]) -> Type:
    found = _same(types)
    if node.function == "add" and found.kind is Kind.TEXT:
        return found
    _require(found, NUMBERS, "added, subtracted or multiplied")
    if node.function == "multiply" and found.kind is Kind.DECIMAL:
        raise ValueError("a product of Decimals has more digits than there are; cast to float")
    return found


def _division(node: CallNode, types: list[Type]) -> Type:
    found = _same(types)
    _require(found, {Kind.INT, Kind.FLOAT}, "divided")
    return FLOAT.or_null(found.nullable)


def _whole_division(node: CallNode, types: list[Type]) -> Type:
    found = _same(types)
    _require(found, {Kind.INT}, "divided to whole numbers")
    return found


def _negation(node: CallNode, types: list[Type]) -> Type:
    _require(types[0], NUMBERS, "negated")
    return types[0]


def _text_to(result: Type) -> Callable[[CallNode, list[Type]], Type]:
    def rule(node: CallNode, types: list[Type]) -> Type:
        for each in types:
            _require(each, {Kind.TEXT}, "text")
        return result.or_null(any(each.nullable for each in types))

    return rule


def _length(node: CallNode, types: list[Type]) -> Type:
    _require(types[0], {Kind.TEXT, Kind.BYTES, Kind.LIST}, "of a length")
    return INT.or_null(types[0].nullable)


def _contains(node: CallNode, types: list[Type]) -> Type:
    holder, item = types
    _require(holder, {Kind.TEXT, Kind.LIST}, "made of items")
    wanted = TEXT if holder.item is None else holder.item
    if holder.item is None and not isinstance(node.arguments[1], ValueNode):
        raise ValueError("a text is searched for a constant; give one")
    if item.required != wanted:
        raise ValueError(f"a {holder.required} has {wanted} in it, not {item.required}")
    _require(wanted, COMPARABLE, "compared")
    return BOOL.or_null(holder.nullable or item.nullable)


def _floor(node: CallNode, types: list[Type]) -> Type:
    _require(types[0], {Kind.INT, Kind.DATETIME}, "a time")
    return types[0]


_CASTS = {
    "int": {Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.TEXT},
    "float": {Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.TEXT},
    "str": {Kind.INT, Kind.TEXT, Kind.BYTES},
    "bytes": {Kind.TEXT, Kind.BYTES},
}
_CAST_TYPES = {"int": INT, "float": FLOAT, "str": TEXT, "bytes": BYTES}


def _cast(node: CallNode, types: list[Type]) -> Type:
    to = node.option("to")
    _require(types[0], _CASTS[to], f"cast to {to}")
    return _CAST_TYPES[to].or_null(types[0].nullable)


def _get(node: CallNode, types: list[Type]) -> Type:
    inner: type[Row] = node.option("row")
    if types[0].row is not inner:
        raise ValueError(f"{types[0]} is no {inner.__name__}")
    return inner.__fields__[node.option("name")].type.or_null(
        types[0].nullable or inner.__fields__[node.option("name")].type.nullable
    )


def _or_else(node: CallNode, types: list[Type]) -> Type:
    first, other = types
    return _same([first.required, other])


def _when(node: CallNode, types: list[Type]) -> Type:
    condition, *branches = types
    if condition.kind is not Kind.BOOL:
        raise ValueError(f"{condition} is no condition")
    return _same(branches)


_EQUALITY = _comparison(COMPARABLE, "compared with ==")
_ORDER = _comparison(ORDERED, "ordered")

_RULES: dict[str, Callable[[CallNode, list[Type]], Type]] = {
    "equal": _EQUALITY,
    "not_equal": _EQUALITY,
    "less": _ORDER,
    "less_equal": _ORDER,
    "greater": _ORDER,
    "greater_equal": _ORDER,
    "and": _logic,
    "or": _logic,
    "not": _logic,
    "add": _arithmetic,
    "subtract": _arithmetic,
    "multiply": _arithmetic,
    "divide": _division,
    "floor_divide": _whole_division,
    "modulo": _whole_division,
    "negate": _negation,
    "is_null": lambda node, types: BOOL,
    "or_else": _or_else,
    "lower": _text_to(TEXT),
    "upper": _text_to(TEXT),
    "split": _text_to(list_of(TEXT)),
    "slice": _text_to(TEXT),
    "matches": _text_to(BOOL),
    "concat": _text_to(TEXT),
    "length": _length,
    "contains": _contains,
    "floor": _floor,
    "cast": _cast,
    "get": _get,
    "when": _when,
}
