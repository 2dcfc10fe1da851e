"""Values that users' functions return, as the columns of their fields have them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation, localcontext
from operator import index
from typing import TYPE_CHECKING, Any

from headrace.core.user_text import describe_value, kind_of
from headrace.extensions.streams.types import DIGITS, LEAST_INT, MOST_INT, Kind

if TYPE_CHECKING:
    from headrace.extensions.streams.types import Type


def fit(value: Any, kind: Type, is_what: str = "was returned") -> Any:
    """Return a value as a column of the type takes it; rows become dicts, by attributes' names.

    Nothing is rounded or cut: a float is no int, and a Decimal has no more digits than its field.
    ``is_what`` stands in an error after the value.

    Raises:
        TypeError: the value is none of the type; the text says what it is.
    """
    if value is None:
        if kind.nullable:
            return None
        raise TypeError(f"None {is_what}, and {kind} is expected")
    if kind.item is not None:
        if not isinstance(value, (list, tuple)):
            raise _misfit(value, kind, is_what)
        return [fit(each, kind.item, is_what) for each in value]
    if kind.row is not None:
        if type(value) is not kind.row:
            raise _misfit(value, kind, is_what)
        return fit_row(value)
    return _fit_scalar(value, kind, is_what)


def fit_row(row: Any) -> dict[str, Any]:
    """Return the fields of a row as columns take them.

    Raises:
        TypeError: a value is none of its field's type; the text names the field.
    """
    found = {}
    for name, declared in type(row).__fields__.items():
        try:
            found[name] = fit(getattr(row, name), declared.type)
        except TypeError as error:
            raise TypeError(f"{type(row).__name__}.{name}: {error}") from None
    return found


def python_value(value: Any, kind: Type) -> Any:
    """Return a value of a column as users' code has it."""
    if value is None:
        return None
    if kind.item is not None:
        return [python_value(each, kind.item) for each in value]
    if kind.row is not None:
        fields = kind.row.__fields__
        return kind.row(**{name: python_value(value[name], fields[name].type) for name in fields})
    return value


def plain_value(value: Any) -> Any:
    """Return a value of users' code with dicts in place of rows, by attributes' names."""
    if hasattr(type(value), "__fields__"):
        return {name: plain_value(getattr(value, name)) for name in type(value).__fields__}
    return [plain_value(each) for each in value] if isinstance(value, list) else value


def _misfit(value: Any, kind: Type, is_what: str) -> TypeError:
    shown = describe_value(value)
    return TypeError(f"{shown}, of type {kind_of(value)}, {is_what}, and {kind} is expected")


def _fit_scalar(value: Any, kind: Type, is_what: str) -> Any:
    found: Any = None
    match kind.kind:
        case Kind.TEXT:
            found = value if isinstance(value, str) and _is_text(value) else None
        case Kind.INT:
            found = _fit_int(value)
        case Kind.FLOAT:
            found = _fit_float(value)
        case Kind.BOOL:
            found = bool(value) if isinstance(value, bool) or kind_of(value) == "bool_" else None
        case Kind.BYTES:
            found = bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else None
        case Kind.DATETIME:
            found = _fit_moment(value)
        case Kind.DECIMAL:
            found = _fit_decimal(value, kind.scale or 0)
    if found is None:
        raise _misfit(value, kind, is_what)
    return found


def _is_text(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fit_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        found = index(value)
    except TypeError:
        return None
    return found if LEAST_INT <= found <= MOST_INT else None


def _fit_float(value: Any) -> float | None:
    if isinstance(value, float):
        return float(value)
    whole = _fit_int(value)
    return None if whole is None else float(whole)


def _fit_moment(value: Any) -> datetime | None:
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _fit_decimal(value: Any, scale: int) -> Decimal | None:
    whole = _fit_int(value)
    if not isinstance(value, Decimal) and whole is None:
        return None
    exact = value if whole is None else Decimal(whole)
    with localcontext(prec=DIGITS):
        try:
            found = exact.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            return None
    return found if found == exact else None
