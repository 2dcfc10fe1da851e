"""Checks of what operators are given: names, keys, fields of rows, sides of joins, aggregates.

Each raises a TypeError that says what does not fit and what to write; :func:`named_errors` puts the
operator's name before it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError
from headrace.core.extras import Extra
from headrace.extensions.streams import aggregates as declared
from headrace.extensions.streams.expressions import (
    FieldNode,
    KeyNode,
    Part,
    PartNode,
    ValueNode,
    describe,
    node_of,
)
from headrace.extensions.streams.fitted import fit
from headrace.extensions.streams.inference import Resolved, Scope, resolve
from headrace.extensions.streams.operators import Aggregated, Join, Output
from headrace.extensions.streams.types import (
    FLOAT,
    INT,
    KEYS,
    NUMBERS,
    ORDERED,
    Kind,
    Type,
    list_of,
)
from headrace.extensions.streams.windows import JoinWindows, TimeWindows, join_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.extensions.streams.expressions import Expr, Node
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.windows import Span, Windows

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: The time of a row, as expressions name it.
TIME = ((Part.TIME, INT),)


@contextmanager
def named_errors(label: str) -> Iterator[None]:
    """Raise errors as those of the operator that they are of."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError([f"{label}: {error}"]) from error


def require_name(name: object) -> None:
    """Check what state and topics are called by."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TypeError(
            f"{name!r} is no name; state and topics are called by it, so take letters, digits, "
            "- and _, 100 at most"
        )


def require_topic(topic: object) -> None:
    """Check the name of a topic."""
    if not isinstance(topic, str) or not is_topic(topic):
        raise TypeError(f"{topic!r} is no name of a topic")


def is_topic(name: str) -> bool:
    """Return whether brokers take a name for a topic."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def require_function(function: object) -> None:
    """Check that users gave something to call."""
    if not callable(function):
        raise TypeError(f"{function!r} is no function")


def check_version(name: str, version: object) -> int:
    """Return the version of a store, a number from 1."""
    if type(version) is not int or version < 1:
        raise ConfigError([f"{name!r}: version={version!r} is no number from 1"])
    return version


def scope_of(
    rows: tuple[type[Row], ...], output: Output, parts: tuple[tuple[Part, Type], ...] = ()
) -> Scope:
    """Return what an expression may name: rows, the key of ``output``, and other parts."""
    if len(output.key) == 1:
        return Scope(rows, parts=((Part.KEY, output.key[0]), *parts))
    hint = f"the key has {len(output.key)} parts; name one as it was grouped by"
    return Scope(rows, parts=parts, hints=((Part.KEY, hint),))


def resolve_time(time: Expr[Any], rows: type[Row], key: tuple[Type, ...]) -> Node:
    """Return the expression of a record's time: milliseconds, or a datetime."""
    scope = Scope((rows,), parts=((Part.KEY, key[0]), *TIME))
    found = resolve(node_of(time), scope)
    if found.type.kind not in {Kind.INT, Kind.DATETIME}:
        raise TypeError(f"time={describe(found.node)} is {found.type}; give int or datetime")
    return found.node


def resolve_condition(where: object, scope: Scope) -> Node:
    """Return a condition on rows."""
    found = resolve(node_of(where), scope)
    if found.type.kind is not Kind.BOOL:
        raise TypeError(f"{describe(found.node)} is {found.type}, which is no condition")
    return found.node


def resolve_key(by: tuple[object, ...], scope: Scope) -> tuple[Resolved, ...]:
    """Return the parts of a key, each of a type that keys may have."""
    if not by:
        raise TypeError("give an expression, as in Order.id")
    found = tuple(resolve(node_of(each), scope) for each in by)
    for each in found:
        is_bytes = each.type.kind is Kind.BYTES and len(found) == 1
        if each.type.kind not in KEYS and not is_bytes:
            raise TypeError(
                f"{describe(each.node)} is {each.type}, which is no key; keys are str, int, bool, "
                "or bytes alone"
            )
    return found


def is_key(parts: tuple[Resolved, ...], output: Output) -> bool:
    """Return whether rows are by this key already."""
    nodes = tuple(each.node for each in parts)
    return nodes == output.by or nodes == (PartNode(Part.KEY),)


def require_key(output: Output) -> None:
    """Check that rows have a key."""
    if not output.key:
        raise TypeError(f"{output.row.__name__} rows have no known key; key_by them first")


def require_field(rows: type[Row], name: str) -> None:
    """Check that a row has a field."""
    if name not in rows.__fields__:
        known = ", ".join(rows.__fields__) or "none"
        raise TypeError(f"{rows.__name__} has no field {name!r}; its fields: {known}")


def fits(rows: type[Row], name: str, found: Type) -> bool:
    """Return whether a field takes each value of a type."""
    return rows.__fields__[name].type.accepts(found)


def describe_misfit(rows: type[Row], name: str, found: Type) -> str:
    """Return why a field does not take a type, and what to write."""
    kind = rows.__fields__[name].type
    if kind.required == found.required:
        step = "give .or_else(...), or declare the field with | None"
    else:
        step = "cast the value, or declare the field so"
    return f"field {name} of {rows.__name__} is {kind} and gets {found}; {step}"


def resolve_fields(
    rows: type[Row],
    fields: Mapping[str, object],
    scope: Scope,
    *,
    lists: bool = False,
    given: Iterable[str] = (),
) -> dict[str, Resolved]:
    """Return the fields of a row as they are computed, in the order of its class.

    With ``lists`` a field may get a list of its type. ``given`` are computed otherwise.
    """
    for name in fields:
        require_field(rows, name)
    found: dict[str, Resolved] = {}
    for name, each in rows.__fields__.items():
        if name in given:
            continue
        if name not in fields:
            if each.is_required:
                raise TypeError(f"field {name} of {rows.__name__} is missing; give {name}=...")
            found[name] = Resolved(ValueNode(each.default, each.type), each.type)
            continue
        try:
            found[name] = _with_constant(fields[name], each.type, scope)
        except TypeError as error:
            raise TypeError(f"field {name}: {error}") from error
        kind = found[name].type
        is_list = kind.item is not None and each.type.accepts(kind.item)
        if not each.type.accepts(kind) and not (lists and is_list):
            raise TypeError(describe_misfit(rows, name, kind))
    return found


def _with_constant(value: object, kind: Type, scope: Scope) -> Resolved:
    """Return an expression, or a constant as one of the field's type where it fits."""
    node = node_of(value)
    if isinstance(node, ValueNode) and node.type is None and kind.nullable:
        return Resolved(ValueNode(None, kind.required), kind)
    if kind.kind is Kind.FLOAT and isinstance(node, ValueNode) and type(node.value) is int:
        node = ValueNode(float(node.value), FLOAT)
    return resolve(node, scope)


def by_of_key(
    rows: type[Row], found: Mapping[str, Resolved], key: tuple[Type, ...]
) -> tuple[Node, ...]:
    """Return the fields of a row that are the parts of its key; none unless all are there."""
    parts: list[Node] = [KeyNode(place) for place in range(len(key))]
    if len(key) == 1:
        parts = [PartNode(Part.KEY)]
    return by_of(rows, found, parts)


def by_of(
    rows: type[Row], found: Mapping[str, Resolved], parts: Iterable[Node]
) -> tuple[Node, ...]:
    """Return the fields of a row that are these expressions of another; none unless all are."""
    by = []
    for part in parts:
        same = [name for name, each in found.items() if each.node == part]
        if not same:
            return ()
        by.append(FieldNode(rows, same[0]))
    return tuple(by)


def windows_of_join(
    within: Span | None, before: Span | None, after: Span | None, grace: Span
) -> JoinWindows:
    """Return how far apart the times of a pair may be."""
    if (within is None) == (before is None and after is None):
        raise TypeError('give within="10m", or before= and after=')
    if within is not None:
        before = after = within
    return join_windows(before=before or "0s", after=after or "0s", grace=grace)


def scope_of_join(
    kind: str, left: Output, right: Output, source: Output | None = None
) -> tuple[Join, Scope]:
    """Return the kind of a join, and what its fields may name."""
    if kind not in {each.value for each in Join}:
        raise TypeError(f"kind={kind!r}: a join is inner, left or outer")
    if left.row is right.row:
        raise TypeError(
            f"both sides are {left.row.__name__}, so a field says not which one is meant; select "
            "one side into a row of another class"
        )
    for each in (left, right):
        require_key(each)
    if left.key != right.key:
        names = [", ".join(map(str, each.key)) for each in (left, right)]
        raise TypeError(
            f"{left.row.__name__} has the key {names[0]} and {right.row.__name__} {names[1]}, so "
            "that no key of one is that of the other; key_by both alike"
        )
    join = Join(kind)
    missing = set()
    if join is not Join.INNER:
        missing.add(right.row)
    if join is Join.OUTER:
        missing.add(left.row)
    scope = scope_of((left.row, right.row), source or left, TIME)
    return join, replace(scope, missing=frozenset(missing))


def require_subtraction(name: str, found: object) -> None:
    """Check that an aggregate of a table's groups can take a row away again."""
    if isinstance(found, declared.Agg) and not found.subtracts:
        kind = found.describe()["kind"]
        raise TypeError(
            f"field {name}: {kind} cannot take away what a row was before it changed: what it left "
            f"out for that row is not known; take count, total or mean, or aggregate changes as "
            "rows of a stream, by updates() and group_by"
        )


# --- aggregates -----------------------------------------------------------------------------------


def resolve_aggregate(
    name: str,
    aggregate: declared.Agg[Any],
    scope: Scope,
    declaration: Type,
    windows: Windows | None,
) -> Aggregated:
    """Return an aggregate with the types of what it is computed of."""
    kind = aggregate.describe()["kind"]
    try:
        found = tuple(resolve(node_of(each), scope) for each in aggregate.arguments)
    except TypeError as error:
        raise TypeError(f"field {name}: {kind}: {error}") from error
    types = tuple(each.type for each in found)
    try:
        result = _result_of(aggregate, types, scope, declaration, windows)
    except TypeError as error:
        shown = ", ".join(describe(each.node) for each in found)
        raise TypeError(f"field {name}: {kind}({shown}): {error}") from None
    return Aggregated(
        aggregate=aggregate,
        arguments=tuple(each.node for each in found),
        types=types,
        result=result,
    )


def _result_of(
    aggregate: declared.Agg[Any],
    types: tuple[Type, ...],
    scope: Scope,
    declaration: Type,
    windows: Windows | None,
) -> Type:
    match aggregate:
        case declared.Count():
            return INT
        case declared.Fold():
            return _result_of_fold(aggregate, scope, declaration, windows)
        case declared.Total() | declared.Mean() | declared.ApproxQuantile():
            return _result_of_numbers(aggregate, types[0])
        case declared.ApproxQuantiles():
            return list_of(_result_of_numbers(aggregate, types[0]).required)
        case declared.First() | declared.Last() | declared.Collect():
            pass
        case _:
            # of top the second one decides
            _require_kind(types[-1], ORDERED | {Kind.BOOL}, "ordered")
    if isinstance(aggregate, declared.ApproxDistinct):
        _require_extra(Extra.DISTINCT)
        return INT
    is_one = (declared.Least, declared.Most, declared.First, declared.Last)
    return types[0] if isinstance(aggregate, is_one) else list_of(types[0].required)


def _result_of_fold(
    fold: declared.Fold[Any], scope: Scope, declaration: Type, windows: Windows | None
) -> Type:
    if fold.rows not in scope.rows:
        raise TypeError(f"rows={fold.rows.__name__} is not what is grouped")
    one_row = windows is None or (isinstance(windows, TimeWindows) and windows.tumbling)
    if fold.merge is None and not one_row:
        raise TypeError("these windows are made of parts; give merge=")
    fit(fold.start, declaration, "is the start")
    return declaration


def _result_of_numbers(aggregate: declared.Agg[Any], kind: Type) -> Type:
    if isinstance(aggregate, (declared.ApproxQuantile, declared.ApproxQuantiles)):
        _require_kind(kind, NUMBERS, "a number")
        _require_extra(Extra.QUANTILES)
    else:
        _require_kind(kind, NUMBERS, "added up")
    return kind if isinstance(aggregate, declared.Total) else FLOAT.or_null(kind.nullable)


def _require_kind(found: Type, kinds: set[Kind], doing: str) -> None:
    if found.kind not in kinds:
        names = ", ".join(sorted(each.value for each in kinds))
        raise TypeError(f"{found} is not {doing}; that is for {names}")


def _require_extra(extra: Extra) -> None:
    if not extra.installed:
        raise TypeError(f"it {extra.advice}")
