"""What every section of the configuration has in common, and the sections for TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.types.scalars import Flag, LocalPath
from headrace.config.types.secrets import SecretValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self


T = TypeVar("T")

Hot = Annotated[T, Field(json_schema_extra={"hot": True})]
"""A field whose new value is applied in place: nothing is drained, released or reconnected."""

Cold = Annotated[T, Field(json_schema_extra={"hot": False})]
"""A field whose new value needs what it belongs to drained, rebuilt or reconnected."""


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

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former keys and what each is called now, for the error that a former key gets."""

    def contradictions(self) -> Iterator[FieldConflict]:
        """Yield what does not fit together, looking at this section and those in it."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = list(self.contradictions())
        if found:
            raise conflict_in(found)
        return self


class TlsFiles(Section):
    """The files of a TLS connection, all in PEM form."""

    ca_file: Cold[LocalPath | None] = None
    """The certificates that servers are trusted by; null: those of the system."""

    certificate_file: Cold[LocalPath | None] = None
    """The certificate that Headrace shows, for servers that ask for one."""

    key_file: Cold[LocalPath | None] = None
    """The private key of certificate_file."""

    key_password: Cold[SecretValue | None] = None
    """The password of key_file; null: the key is not encrypted."""

    def contradictions(self) -> Iterator[FieldConflict]:
        if self.certificate_file is not None and self.key_file is None:
            yield FieldConflict(("certificate_file",), "needs key_file, its private key")
        if self.key_file is not None and self.certificate_file is None:
            yield FieldConflict(("key_file",), "needs certificate_file, which it is the key of")
        if self.key_password is not None and self.key_file is None:
            yield FieldConflict(("key_password",), "needs key_file, which it is the password of")


class KafkaTls(TlsFiles):
    """TLS to the brokers."""

    verify_hostname: Cold[Flag] = True
    """Whether a broker's certificate must name the host that was connected to."""


class ZooKeeperTls(TlsFiles):
    """TLS to the ZooKeeper servers."""

    verify: Cold[Flag] = True
    """Whether a server's certificate must be trusted and name the host that was connected to."""
