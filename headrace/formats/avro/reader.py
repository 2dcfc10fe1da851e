"""From the configuration to the decoder of a channel: the reader's schema, and the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.core.decoders import CustomDecoder
from headrace.core.errors import ConfigError, StartError
from headrace.core.tables import KAFKA_COLUMN
from headrace.formats.avro.decoder import AvroDecoder
from headrace.formats.avro.defaults import check_defaults
from headrace.formats.avro.layout import columns_of
from headrace.formats.avro.program import compiled
from headrace.formats.avro.schema import AvroType, parse_schema
from headrace.formats.errors import AvroSchemaError, RegistryError, UnknownSchemaError
from headrace.formats.registry import (
    RegisteredSchema,
    SchemaRegistry,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
    from headrace.formats.registry import RegistrySettings

log = structlog.get_logger(__name__)

#: The reader's schemas that this process has read, by the registry and the choice. A channel that
#: starts again while the registry is away, also one that goes back to what it ran, keeps its own.
_READ: dict[tuple[object, ...], RegisteredSchema] = {}
_MOST_READ = 64

_FACTORY = "headrace.formats.avro.reader:avro_decoder"


def avro_decoder(reader: str, references: Sequence[str], registry: RegistrySettings) -> AvroDecoder:
    """Return the decoder of one process. Nothing is asked of the registry yet."""
    return AvroDecoder(parse_schema(reader, references), SchemaRegistry(registry))


def decoder_of(chosen: ReaderSchemaConfig, registry: RegistryConfig) -> CustomDecoder:
    """Return the decoder of a channel, whose columns are fixed from then on. May ask the registry.

    Raises:
        ConfigError: the reader's schema is none, or has what columns cannot hold.
        StartError: the registry does not have it, or does not answer, and this process has not
            read it before.
    """
    settings = settings_of(registry)
    found = _reader_schema(chosen, settings)
    try:
        _checked(found)
    except AvroSchemaError as error:
        raise ConfigError([f"reader_schema {_named(chosen)}: {error}"]) from error
    options = {"reader": found.text, "references": found.references, "registry": settings}
    return CustomDecoder(_FACTORY, options)


def file_fault(file: Path) -> str | None:
    """Return why a file is no reader's schema, None where it is one."""
    try:
        _checked(RegisteredSchema(0, "AVRO", file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        return f"{file} cannot be read: {error}; correct the path"
    except AvroSchemaError as error:
        return f"{file}: {error}"
    return None


def _checked(found: RegisteredSchema) -> AvroType:
    if found.kind != "AVRO":
        raise AvroSchemaError(f"the schema is of type {found.kind}, not AVRO")
    reader = parse_schema(found.text, found.references)
    row = columns_of(reader)
    check_defaults(reader)
    compiled(reader, row)
    if any(each.name == KAFKA_COLUMN for each in reader.fields):
        raise AvroSchemaError(f"the schema uses the reserved name {KAFKA_COLUMN!r}")
    return reader


def _reader_schema(chosen: ReaderSchemaConfig, settings: RegistrySettings) -> RegisteredSchema:
    if chosen.file is not None:
        fault = file_fault(chosen.file)
        if fault is not None:
            raise ConfigError([f"reader_schema.file: {fault}"])
        return RegisteredSchema(0, "AVRO", chosen.file.read_text(encoding="utf-8"))
    key = (settings, chosen.id, chosen.subject, str(chosen.version))
    try:
        found = _read(SchemaRegistry(settings), chosen)
    except UnknownSchemaError as error:
        raise StartError(f"there is no reader's schema {_named(chosen)} now: {error}") from error
    except RegistryError as error:
        kept = _READ.get(key)
        if kept is None:
            raise StartError(
                f"there is no reader's schema {_named(chosen)} now: {error}"
            ) from error
        log.warning(
            "reader_schema_kept", schema=_named(chosen), number=kept.number, error=str(error)
        )
        return kept
    _READ[key] = found
    while len(_READ) > _MOST_READ:
        del _READ[next(iter(_READ))]
    return found


def _read(registry: SchemaRegistry, chosen: ReaderSchemaConfig) -> RegisteredSchema:
    if chosen.id is not None:
        return registry.schema_now(chosen.id)
    return registry.version(chosen.subject or "", str(chosen.version))


def _named(chosen: ReaderSchemaConfig) -> str:
    if chosen.file is not None:
        return str(chosen.file)
    if chosen.id is not None:
        return f"id {chosen.id}"
    return f"{chosen.subject}, version {chosen.version}"
