"""What every section of the configuration has in common, and the sections for TLS."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, model_validator

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.types.scalars import Flag, LocalPath
from headrace.config.types.secrets import SecretValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from pydantic.fields import FieldInfo


class ReloadEffect(Enum):
    """What is touched when a value changes, from the least to the most."""

    IN_PLACE = "in place"
    """What runs goes on with the new value; nothing is drained, released or reconnected."""

    SHARING = "sharing"
    """The group shares its partitions again; those that stay go on undisturbed."""

    TOPICS = "topics"
    """Partitions of topics that are no longer read are given back, those of others stay."""

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
    """Be the default of a field that ``derived`` fills in; it needs ``validate_default=True``."""
    return None


def derived(default: Callable[[ValidationInfo], Any], accepts: Any) -> BeforeValidator:
    """Return what fills in ``default(info)`` where the file has nothing or null.

    ``accepts`` is the type that the JSON schema shows.
    """

    def fill_in(value: Any, info: ValidationInfo) -> Any:
        return default(info) if value is None else value

    return BeforeValidator(fill_in, json_schema_input_type=accepts)


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys, silent about its values in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    def conflicts(self) -> Iterator[FieldConflict]:
        """Yield what does not fit together, looking at this section and those in it."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = list(self.conflicts())
        if found:
            raise conflict_in(found)
        return self


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
    """Whether a broker's certificate must name the host that was connected to."""


class ZooKeeperTls(TlsFiles):
    """TLS to the ZooKeeper servers."""

    verify: Reconnects[Flag] = True
    """Whether a server's certificate must be trusted and name the host that was connected to."""
