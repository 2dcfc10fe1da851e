"""Expressions in columns: all rows of a batch at once, and the rows at fault by themselves.

A row is at fault where an integer overflows, is divided by zero, or a cast has no result. Its value
is null then, and the reason is known by its place. Nothing here calls Python for each row but what
looks for the rows at fault, and the case of text beyond ASCII, which is made once a different text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.tables import FIRST_MICROSECOND
from headrace.extensions.streams.expressions import CallNode, ValueNode, describe
from headrace.extensions.streams.types import DIGITS, LEAST_INT, MOST_INT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.extensions.streams.expressions import Node

#: Holds any sum or product of two integers, and any sum of two decimals.
_WIDE_INT = pa.decimal256(DIGITS // 2, 0)
_MOST_DECIMAL = 10**DIGITS - 1


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A value for each row, and why rows have none: the reason by the row's place."""

    values: pa.Array
    faults: Mapping[int, str] = field(default_factory=dict)


def evaluate(node: Node, columns: Mapping[Node, pa.Array], size: int) -> Evaluated:
    """Return an expression of each of ``size`` rows. Any thread.

    ``columns`` has what the expression names: fields and parts, as arrays of the columns of their
    types. The expression is one that ``resolve`` returned.
    """
    return _Evaluation(columns, size).array_of(node)


class _Fault(NamedTuple):
    """Values without those at fault, which rows these are, and what is wrong with them."""

    values: pa.Array
    at_fault: np.ndarray[Any, np.dtype[np.bool_]]
    reason: str


class _Evaluation:
    """Computes expressions over the same columns, each node once."""

    def __init__(self, columns: Mapping[Node, pa.Array], size: int) -> None:
        self._columns = columns
        self._size = size
        self._known: dict[Node, Evaluated] = {}

    def array_of(self, node: Node) -> Evaluated:
        found = self.value_of(node)
        return Evaluated(self._as_array(found.values), found.faults)

    def value_of(self, node: Node) -> Evaluated:
        """Return the values of a node, a scalar for a constant."""
        if isinstance(node, ValueNode):
            assert node.type is not None, "resolve gives each constant a type"
            return Evaluated(pa.scalar(node.value, node.type.arrow()))
        if not isinstance(node, CallNode):
            return Evaluated(self._columns[node])
        if node not in self._known:
            self._known[node] = self._call(node)
        return self._known[node]

    def _call(self, node: CallNode) -> Evaluated:
        if node.function == "when":
            return self._when(*node.arguments)
        if node.function == "or_else":
            return self._or_else(*node.arguments)
        arguments = [self.value_of(each) for each in node.arguments]
        values = [each.values for each in arguments]
        if not any(isinstance(each, pa.Array) for each in values):
            values[0] = self._as_array(values[0])
        found = _FUNCTIONS[node.function](node, *values)
        faults = _united(*(each.faults for each in arguments))
        if not isinstance(found, _Fault):
            return Evaluated(found, faults)
        reason = f"{describe(node)}: {found.reason}"
        own = dict.fromkeys(np.flatnonzero(found.at_fault).tolist(), reason)
        return Evaluated(found.values, _united(faults, own))

    def _when(self, where: Node, then: Node, otherwise: Node) -> Evaluated:
        condition = self.array_of(where)
        chosen = pc.fill_null(condition.values, False)
        first, second = self.value_of(then), self.value_of(otherwise)
        values = pc.if_else(chosen, self._as_array(first.values), self._as_array(second.values))
        faults = _chosen(first.faults, second.faults, chosen)
        return Evaluated(values, _united(condition.faults, faults))

    def _or_else(self, value: Node, other: Node) -> Evaluated:
        first, second = self.array_of(value), self.value_of(other)
        chosen = pc.is_valid(first.values)
        values = pc.if_else(chosen, first.values, self._as_array(second.values))
        # a row at fault has a null, and its own reason
        return Evaluated(values, _united(first.faults, _chosen({}, second.faults, chosen)))

    def _as_array(self, values: pa.Array | pa.Scalar) -> pa.Array:
        return values if isinstance(values, pa.Array) else pa.repeat(values, self._size)


def _united(*faults: Mapping[int, str]) -> Mapping[int, str]:
    """Return the faults of all parts; of a row that has several, the first."""
    found = [each for each in faults if each]
    if len(found) <= 1:
        return found[0] if found else {}
    return {row: reason for each in reversed(found) for row, reason in each.items()}


def _chosen(
    first: Mapping[int, str], second: Mapping[int, str], chosen: pa.BooleanArray
) -> Mapping[int, str]:
    """Return the faults of a choice: those of the first where it is chosen, else of the second."""
    if not first and not second:
        return {}
    is_first = chosen.to_numpy(zero_copy_only=False)
    kept = {row: reason for row, reason in first.items() if is_first[row]}
    return kept | {row: reason for row, reason in second.items() if not is_first[row]}


# --- functions of columns -------------------------------------------------------------------------


def _plain(function: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    return lambda node, *values: function(*values)


def _mask(values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where a condition is true."""
    found: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(values, False).to_numpy(
        zero_copy_only=False
    )
    return found


def _arithmetic(name: str) -> Callable[..., pa.Array | _Fault]:
    """Return addition, subtraction or multiplication of numbers; addition of text appends."""
    checked, plain = getattr(pc, f"{name}_checked"), getattr(pc, name)

    def function(node: CallNode, left: Any, right: Any) -> pa.Array | _Fault:
        kind = left.type
        if pa.types.is_string(kind):
            return _append(left, right)
        if pa.types.is_floating(kind):
            return plain(left, right)
        if pa.types.is_decimal(kind):
            wide = pa.decimal256(DIGITS, kind.scale)
            return _as_decimals(plain(left.cast(wide), right.cast(wide)), kind)
        try:
            return checked(left, right)
        except pa.ArrowInvalid:
            return _as_integers(plain(left.cast(_WIDE_INT), right.cast(_WIDE_INT)))

    return function


def _as_integers(wide: pa.Array) -> _Fault:
    """Return decimal numbers as integers, and which are none of 64 bits."""
    most, least = (pa.scalar(Decimal(each), wide.type) for each in (MOST_INT, LEAST_INT))
    outside = pc.or_(pc.greater(wide, most), pc.less(wide, least))
    values = pc.if_else(outside, pa.scalar(None, wide.type), wide).cast(pa.int64())
    return _Fault(values, _mask(outside), "beyond 64 bits")


def _as_decimals(wide: pa.Array, kind: pa.DataType) -> pa.Array | _Fault:
    try:
        return wide.cast(kind)
    except pa.ArrowInvalid:
        most = pa.scalar(Decimal((0, (9,) * DIGITS, -kind.scale)), wide.type)
        outside = pc.greater(pc.abs(wide), most)
        values = pc.if_else(outside, pa.scalar(None, wide.type), wide).cast(kind)
        return _Fault(values, _mask(outside), f"more than {DIGITS} digits")


def _divide(node: CallNode, left: Any, right: Any) -> pa.Array | _Fault:
    """Divide as floats. Only an integer has a zero that is no float."""
    whole = pa.types.is_integer(left.type)
    result = pc.divide(left.cast(pa.float64(), safe=False), right.cast(pa.float64(), safe=False))
    if not whole:
        return result
    is_zero = pc.equal(right, 0)
    if not pc.any(is_zero, min_count=0).as_py():
        return result
    # null divided by 0 is null
    at_fault = _all_rows(pc.and_(pc.is_valid(left), pc.fill_null(is_zero, False)), len(result))
    return _Fault(pc.if_else(pa.array(at_fault), None, result), at_fault, "a division by zero")


def _all_rows(found: Any, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a condition as one of each row, if it is the same for all."""
    return _mask(found) if isinstance(found, pa.Array) else np.full(size, found.as_py())


def _whole_division(node: CallNode, left: Any, right: Any) -> pa.Array | _Fault:
    """Divide integers and round down, or return what is left, as Python does."""
    size = max(len(each) for each in (left, right) if isinstance(each, pa.Array))
    first, second = _integers(left, size), _integers(right, size)
    known = _all_rows(pc.and_(pc.is_valid(left), pc.is_valid(right)), size)
    is_zero = known & (second == 0)
    overflows = known & (first == LEAST_INT) & (second == -1)
    is_quotient = node.function == "floor_divide"
    divisor = np.where(is_zero | overflows | ~known, 1, second)
    values = first // divisor if is_quotient else first % divisor
    at_fault = is_zero | overflows if is_quotient else is_zero
    found = pa.array(values, mask=~known | at_fault)
    if not at_fault.any():
        return found
    return _Fault(found, at_fault, "a division by zero, or beyond 64 bits")


def _integers(values: Any, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return integers, anything in place of null."""
    if isinstance(values, pa.Array):
        found: np.ndarray[Any, np.dtype[np.int64]] = pc.fill_null(values, 0).to_numpy()
        return found
    return np.full(size, values.as_py() or 0, np.int64)


def _negate(node: CallNode, values: pa.Array) -> pa.Array | _Fault:
    try:
        return pc.negate_checked(values)
    except pa.ArrowInvalid:
        lowest = pc.equal(values, LEAST_INT)
        kept = pc.negate_checked(pc.if_else(lowest, None, values))
        return _Fault(kept, _mask(lowest), "beyond 64 bits")


# --- text -----------------------------------------------------------------------------------------


def _append(*texts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def _case(
    of_ascii: Callable[..., pa.Array], of_text: Callable[[str], str]
) -> Callable[..., pa.Array]:
    """Return a change of case. Arrow's own knows no letter that becomes two, as in Java."""

    def function(node: CallNode, texts: pa.Array) -> pa.Array:
        if pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
            return of_ascii(texts)
        different = texts.dictionary_encode()
        made = pa.array(map(of_text, different.dictionary.to_pylist()), pa.string())
        return made.take(different.indices)

    return function


def _split(node: CallNode, texts: pa.Array) -> pa.Array:
    return pc.split_pattern(texts, pattern=node.option("by"))


def _slice(node: CallNode, texts: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(texts, start=node.option("start"), stop=node.option("stop"))


def _matches(node: CallNode, texts: pa.Array) -> pa.Array:
    return pc.match_substring_regex(texts, pattern=node.option("pattern"))


def _length(node: CallNode, values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return pc.utf8_length(values).cast(pa.int64())
    of = pc.list_value_length if pa.types.is_list(kind) else pc.binary_length
    return of(values).cast(pa.int64())


def _contains(node: CallNode, holders: Any, item: Any) -> pa.Array:
    if not pa.types.is_list(holders.type):
        return pc.match_substring(holders, pattern=item.as_py())
    parents, items = pc.list_parent_indices(holders), pc.list_flatten(holders)
    wanted = item if isinstance(item, pa.Scalar) else item.take(parents)
    having = parents.filter(pc.fill_null(pc.equal(items, wanted), False))
    found = np.zeros(len(holders), np.bool_)
    found[having.to_numpy()] = True
    known = _all_rows(pc.and_(pc.is_valid(holders), pc.is_valid(item)), len(holders))
    return pa.array(found, mask=~known)


# --- time -----------------------------------------------------------------------------------------

_MICROSECONDS = 1000


def _floor(node: CallNode, values: pa.Array) -> pa.Array | _Fault:
    kind = values.type
    span, least = node.option("span"), LEAST_INT
    if not pa.types.is_integer(kind):
        span, least = span * _MICROSECONDS, FIRST_MICROSECOND
    times = _integers(values.cast(pa.int64()), len(values))
    above = times % span
    known = _mask(pc.is_valid(values))
    at_fault = known & (times < least + above)
    found = pa.array(times - np.where(at_fault, 0, above), mask=~known | at_fault).cast(kind)
    return _Fault(found, at_fault, "before all times") if at_fault.any() else found


# --- casts ----------------------------------------------------------------------------------------

#: Texts that are numbers. The end of the text is RE2's ``$``.
_INTEGER, _NUMBER = "^-?[0-9]+$", r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"

#: Digits of the lowest integer, and its sign.
_INTEGER_LENGTH = 20


def _cast(node: CallNode, values: pa.Array) -> pa.Array | _Fault:
    to, kind = node.option("to"), values.type
    if to == "int":
        return _as_int(values)
    if to == "float":
        if pa.types.is_string(kind):
            return _parsed(values, _NUMBER, pa.float64())
        return values.cast(pa.uint8() if pa.types.is_boolean(kind) else kind).cast(
            pa.float64(), safe=False
        )
    if to == "str" and pa.types.is_binary(kind):
        return _as_text(values)
    return values.cast(pa.string() if to == "str" else pa.binary())


def _as_int(values: pa.Array) -> pa.Array | _Fault:
    kind = values.type
    if pa.types.is_string(kind):
        return _parsed(values, _INTEGER, pa.int64())
    if not pa.types.is_floating(kind):
        return values.cast(pa.int64())
    # 2 ** 63 is a float, and the highest integer is none
    in_range = pc.and_(
        pc.greater_equal(values, float(LEAST_INT)), pc.less(values, -float(LEAST_INT))
    )
    kept = pc.trunc(pc.if_else(in_range, values, None)).cast(pa.int64(), safe=False)
    at_fault = _mask(pc.invert(in_range))
    return _Fault(kept, at_fault, "no integer of 64 bits") if at_fault.any() else kept


def _parsed(texts: pa.Array, pattern: str, kind: pa.DataType) -> pa.Array | _Fault:
    """Return texts as numbers; those that are none, or too long, are at fault."""
    fits = pc.match_substring_regex(texts, pattern=pattern)
    if pa.types.is_integer(kind):
        texts = pc.replace_substring_regex(texts, pattern="^(-?)0*([0-9]+)$", replacement="\\1\\2")
        fits = pc.and_(fits, pc.less_equal(pc.utf8_length(texts), _INTEGER_LENGTH))
    numbers = pc.if_else(fits, texts, None)
    not_one = _mask(pc.invert(fits))
    reason = f"no {'integer of 64 bits' if pa.types.is_integer(kind) else 'number'}"
    try:
        found = numbers.cast(kind)
    except pa.ArrowInvalid:
        wide = _as_integers(numbers.cast(pa.decimal256(DIGITS, 0)))
        return _Fault(wide.values, wide.at_fault | not_one, reason)
    return _Fault(found, not_one, reason) if not_one.any() else found


def _as_text(values: pa.Array) -> pa.Array | _Fault:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_text_or_null(each) for each in values.to_pylist()]
        found = pa.array(texts, pa.string())
        at_fault = _mask(pc.and_(pc.is_valid(values), pc.is_null(found)))
        return _Fault(found, at_fault, "no text in UTF-8")


def _text_or_null(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _get(node: CallNode, rows: pa.Array) -> pa.Array:
    return pc.struct_field(rows, [node.option("name")])


_FUNCTIONS: dict[str, Callable[..., pa.Array | _Fault]] = {
    "equal": _plain(pc.equal),
    "not_equal": _plain(pc.not_equal),
    "less": _plain(pc.less),
    "less_equal": _plain(pc.less_equal),
    "greater": _plain(pc.greater),
    "greater_equal": _plain(pc.greater_equal),
    "and": _plain(pc.and_kleene),
    "or": _plain(pc.or_kleene),
    "not": _plain(pc.invert),
    "add": _arithmetic("add"),
    "subtract": _arithmetic("subtract"),
    "multiply": _arithmetic("multiply"),
    "divide": _divide,
    "floor_divide": _whole_division,
    "modulo": _whole_division,
    "negate": _negate,
    "is_null": _plain(pc.is_null),
    "lower": _case(pc.ascii_lower, str.lower),
    "upper": _case(pc.ascii_upper, str.upper),
    "split": _split,
    "slice": _slice,
    "matches": _matches,
    "concat": lambda node, *texts: _append(*texts),
    "length": _length,
    "contains": _contains,
    "floor": _floor,
    "cast": _cast,
    "get": _get,
}
