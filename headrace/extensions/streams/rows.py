"""Rows: what a record's value is, as a class of typed fields."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin, overload

from typing_extensions import dataclass_transform

from headrace.extensions.streams.expressions import Expr, FieldNode
from headrace.extensions.streams.types import DIGITS, Kind, Type, type_of_annotation, type_of_value

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class _Missing:
    """The mark in place of a default that a field does not have."""

    def __repr__(self) -> str:
        return "no default"

    def __reduce__(self) -> str:
        # the same one in every process: it is told by its identity
        return "_MISSING"


_MISSING: Any = _Missing()


@dataclass(frozen=True, slots=True)
class _Spec:
    """The arguments of ``field()``, until the class is made."""

    default: Any
    name: str | None
    scale: int | None


def field(*, default: Any = _MISSING, name: str | None = None, scale: int | None = None) -> Any:
    """Declare a default, a name in JSON or the digits of a field, beside its type.

    As in ``amount: Field[Decimal] = field(scale=2)``.

    Args:
        default: what a record without the field has, or with null in its place.
        name: its name in JSON, where that is not the attribute's.
        scale: digits of a Decimal after the point.
    """
    return _Spec(default, name, scale)


class Field(Generic[T]):
    """A field of a row: of the class an expression, of an instance a value."""

    def __init__(self, attribute: str, kind: Type, spec: _Spec) -> None:
        self.attribute = attribute
        self.type = kind
        self.name = attribute if spec.name is None else spec.name
        self._default = spec.default

    @property
    def has_default(self) -> bool:
        """Return whether a record may leave the field out because another value is known."""
        return self._default is not _MISSING

    @property
    def default(self) -> Any:
        """Return what stands in a record without the field; None where nothing was declared."""
        return None if self._default is _MISSING else self._default

    @property
    def is_required(self) -> bool:
        """Return whether a record without the field is poison."""
        return not self.has_default and not self.type.nullable

    @overload
    def __get__(self, row: None, kind: Any) -> Expr[T]: ...
    @overload
    def __get__(self, row: object, kind: Any) -> T: ...
    def __get__(self, row: Any, kind: Any) -> Any:
        if row is None:
            return Expr(FieldNode(kind, self.attribute))
        return row.__dict__[self.attribute]

    def __set__(self, row: Any, value: T) -> None:
        row.__dict__[self.attribute] = value


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Row:
    """The value of a record: fields with types.

    ::

        class Order(Row):
            id: Field[str]
            amount: Field[float | None]
            currency: Field[str] = field(default="EUR")

    A type is str, int, float, bool, bytes, datetime, Decimal, a list of one of them or another row;
    ``| None`` says that it may be missing. ``Order.amount`` is an expression, and
    ``Order(id="a", amount=None).amount`` a value.
    """

    __fields__: ClassVar[Mapping[str, Field[Any]]] = {}

    def __init_subclass__(cls) -> None:
        """Make the fields of what is declared.

        Raises:
            TypeError: a declaration is no field, or has a type or a default that none can have.
        """
        super().__init_subclass__()
        found = {name: each for base in cls.__bases__ for name, each in _fields_of(base).items()}
        for name, annotation in inspect.get_annotations(cls).items():
            found[name] = _made(cls, name, annotation)
            setattr(cls, name, found[name])
        for name, value in vars(cls).items():
            if isinstance(value, _Spec):
                raise TypeError(f"{cls.__name__}.{name} has no type; write {name}: Field[...]")
        _require_distinct_names(cls, found)
        cls.__fields__ = found

    def __init__(self, **values: Any) -> None:
        fields = type(self).__fields__
        for name, each in fields.items():
            if name in values:
                self.__dict__[name] = values.pop(name)
            elif not each.has_default:
                raise TypeError(f"{type(self).__name__}: {name} is missing")
            else:
                self.__dict__[name] = each.default
        if values:
            known = ", ".join(fields) or "none"
            raise TypeError(
                f"{type(self).__name__} has no field {next(iter(values))!r}; its fields: {known}"
            )

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"


def _fields_of(base: type) -> Mapping[str, Field[Any]]:
    return base.__fields__ if issubclass(base, Row) else {}


def _made(cls: type[Row], name: str, annotation: Any) -> Field[Any]:
    """Return a field of a class's annotation."""
    where = f"{cls.__name__}.{name}"
    if name.startswith("_"):
        raise TypeError(f"{where}: a field's name begins with a letter; name= has that in JSON")
    if isinstance(annotation, str):
        annotation = _resolved(cls, where, annotation)
    if get_origin(annotation) is not Field:
        shown = annotation.__name__ if isinstance(annotation, type) else annotation
        raise TypeError(f"{where}: {shown} is no field; write {name}: Field[{shown}]")
    spec = cls.__dict__.get(name, _Spec(_MISSING, None, None))
    if not isinstance(spec, _Spec):
        raise TypeError(f"{where}: write the default {spec!r} as field(default={spec!r})")
    try:
        kind = type_of_annotation(get_args(annotation)[0], spec.scale)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from error
    if spec.default is not _MISSING:
        _require_default(where, spec.default, kind)
    return Field(name, kind, spec)


def _resolved(cls: type[Row], where: str, annotation: str) -> Any:
    """Return what an annotation that is kept as text names in the class's module."""
    names = {**vars(sys.modules[cls.__module__]), cls.__name__: cls}
    try:
        return eval(annotation, names)  # noqa: S307 - as typing.get_type_hints does
    except NameError as error:
        raise TypeError(
            f"{where}: {annotation} is not known in {cls.__module__} ({error}); define and import "
            "what it names at the top level of the module"
        ) from error


def _require_default(where: str, value: Any, kind: Type) -> None:
    if value is None and kind.nullable:
        return
    found = type_of_value(value)
    if kind.kind is Kind.FLOAT and type(value) is int:
        raise TypeError(f"{where}: the default {value!r} is an int; write {float(value)!r}")
    if kind.kind in {Kind.LIST, Kind.ROW}:
        raise TypeError(f"{where}: a {kind.required} has no default; write {kind.required} | None")
    if found is None or found.kind is not kind.kind:
        raise TypeError(f"{where}: the default {value!r} is no {kind}")
    if found.scale is not None and kind.scale is not None and found.scale > kind.scale:
        raise TypeError(f"{where}: the default {value!r} has more than {kind.scale} digits")


def _require_distinct_names(cls: type[Row], fields: Mapping[str, Field[Any]]) -> None:
    names = [each.name for each in fields.values()]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"{cls.__name__}: two fields have the name {name!r} in JSON")


__all__ = ["DIGITS", "Field", "Row", "field"]
