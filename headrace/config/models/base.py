"""The base of every section of the configuration, and the sections for TLS."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from headrace.config.errors import FieldConflict, conflict_in, either
from headrace.config.types.scalars import Flag, LocalPath
from headrace.config.types.secrets import SecretValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    from pydantic.fields import FieldInfo

    from headrace.config.errors import Steps


class ReloadEffect(Enum):
    """The effect that a changed value has on the process, from the least to the most."""

    IN_PLACE = "in place"
    """The process goes on with the new value; nothing is drained, released or reconnected."""

    SHARING = "sharing"
    """The group shares its partitions again; those that stay go on undisturbed."""

    TOPICS = "topics"
    """Partitions of topics that are no longer read are given back, those of topics that are added
    are claimed, and all others stay."""

    CHANNEL = "channel"
    """The channel drains, leaves its group and starts again; other channels go on."""

    SPARK = "spark"
    """The Spark session is built again between two micro-batches; partitions stay."""

    CONNECTION = "connection"
    """All channels drain, connect again and go on."""

    PROCESS = "process"
    """Nothing until the process is restarted."""


T = TypeVar("T")

#: How each field of a section declares what its new value touches.
Hot = Annotated[T, ReloadEffect.IN_PLACE]
Reshares = Annotated[T, ReloadEffect.SHARING]
Resubscribes = Annotated[T, ReloadEffect.TOPICS]
Restarts = Annotated[T, ReloadEffect.CHANNEL]
Rebuilds = Annotated[T, ReloadEffect.SPARK]
Reconnects = Annotated[T, ReloadEffect.CONNECTION]
Fixed = Annotated[T, ReloadEffect.PROCESS]


def effect_of(field: FieldInfo) -> ReloadEffect:
    """Return what the field declares that its new value touches."""
    return next(each for each in field.metadata if isinstance(each, ReloadEffect))


def unset() -> Any:
    """Return the default of a field that ``derived`` fills in; needs ``validate_default=True``."""
    return None


def derived(default: Callable[[ValidationInfo], Any], accepts: Any) -> BeforeValidator:
    """Return what fills in ``default(info)`` where the file has nothing or null.

    ``accepts`` is the type that the JSON schema shows.
    """

    def fill_in(value: Any, info: ValidationInfo) -> Any:
        return default(info) if value is None else value

    return BeforeValidator(fill_in, json_schema_input_type=accepts)


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """A value elsewhere with which a key exists.

    ``place`` leads to it from the section that says so. The key exists where there is one of
    ``values``, or, if ``but`` is given, another one than those. ``example`` is what to write, or
    empty where that would be another section altogether. ``by_default`` says that it holds where
    nothing is written.
    """

    place: tuple[str, ...]
    values: tuple[object, ...] = ()
    but: tuple[object, ...] = ()
    example: str = ""
    by_default: bool = False

    @classmethod
    def one_of(cls, place: str, *values: object, by_default: bool = False) -> OnlyWith:
        """Return the condition that one of these values is at ``place``."""
        first = str(values[0]).lower() if isinstance(values[0], bool) else values[0]
        return cls(tuple(place.split(".")), values, (), f"{place}: {first}", by_default)

    @classmethod
    def none_of(cls, place: str, *values: object, example: str) -> OnlyWith:
        """Return the condition that another value is at ``place``."""
        return cls(tuple(place.split(".")), (), values, example)

    def holds(self, section: BaseModel) -> bool:
        """Return whether the condition is met; without such a place it is not."""
        value: Any = section
        for step in self.place:
            value = getattr(value, step, _NOWHERE)
        if value is _NOWHERE:
            return False
        return value not in self.but if self.but else value in self.values


_NOWHERE = object()


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys, silent about its values in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    only: ClassVar[Mapping[str, tuple[OnlyWith, ...]]] = {}
    """Keys that exist with certain values elsewhere only, by their names or dotted places."""

    @classmethod
    def tag(cls) -> str:
        """Return what chooses this section among others that may stand in its place."""
        return str(cls.model_fields["type"].default) if "type" in cls.model_fields else ""

    def effect_of(self, attribute: str) -> ReloadEffect:
        """Return what a new value of a field touches, where this section has it."""
        return effect_of(type(self).model_fields[attribute])

    def absent(self) -> Iterator[tuple[Steps, str]]:
        """Yield the places of keys that do not exist beside the other values, and where they do."""
        for place, conditions in self.only.items():
            if not any(each.holds(self) for each in conditions):
                examples = dict.fromkeys(each.example for each in conditions)
                yield tuple(place.split(".")), either(filter(None, examples))

    def _written_in_vain(self) -> Iterator[FieldConflict]:
        for steps, examples in self.absent():
            if _is_given(self, steps):
                yield FieldConflict(
                    steps, f"exists only with {examples}; write that, or leave the key out"
                )

    def conflicts(self) -> Iterator[FieldConflict]:
        """Yield what does not fit together, looking at this section and those in it."""
        yield from ()

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the values as a file may have them: without keys that do not exist there."""
        values: dict[str, Any] = handler(self)
        aliases = {info.alias: name for name, info in type(self).model_fields.items()}
        for (*outer, last), _ in self.absent():
            inner: Any = values
            for step in outer:
                inner = inner.get(step) or {}
            for name in (last, aliases.get(str(last))):
                inner.pop(name, None)
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = [*self._written_in_vain(), *self.conflicts()]
        if found:
            raise conflict_in(found)
        return self


def _is_given(section: Any, steps: Steps) -> bool:
    """Return whether a file has the key that ``steps`` lead to, by the names in the file."""
    *outer, last = steps
    for step in outer:
        section = getattr(section, str(step), None)
    if not isinstance(section, BaseModel):
        return False
    fields = type(section).model_fields
    return any(last in {name, fields[name].alias} for name in section.model_fields_set)


class TlsFiles(Section):
    """The files of a TLS connection, all in PEM form."""

    ca_file: Reconnects[LocalPath | None] = None
    """The certificates that servers are trusted by; null: those of the system."""

    certificate_file: Reconnects[LocalPath | None] = None
    """The certificate that Headrace shows, for servers that ask for one."""

    key_file: Reconnects[LocalPath | None] = None
    """The private key of certificate_file."""

    key_password: Reconnects[SecretValue | None] = None
    """The password of key_file; null: the key is not encrypted."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.certificate_file is not None and self.key_file is None:
            yield FieldConflict(("certificate_file",), "needs key_file, its private key")
        if self.key_file is not None and self.certificate_file is None:
            yield FieldConflict(("key_file",), "needs certificate_file, which it is the key of")
        if self.key_password is not None and self.key_file is None:
            yield FieldConflict(("key_password",), "needs key_file, which it is the password of")


class KafkaTls(TlsFiles):
    """TLS to the brokers."""

    verify_hostname: Reconnects[Flag] = True
    """Require that a broker's certificate names the host that was connected to."""


class ZooKeeperTls(TlsFiles):
    """TLS to the ZooKeeper servers."""

    verify: Reconnects[Flag] = True
    """Require that a server's certificate is trusted and names the host that was connected to."""
