"""From the configuration to the decoder of a channel: the reader's message, and the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2

from headrace.core.decoders import CustomDecoder
from headrace.core.errors import ConfigError, StartError
from headrace.core.tables import KAFKA_COLUMN
from headrace.formats.errors import ProtobufSchemaError, RegistryError, UnknownSchemaError
from headrace.formats.protobuf.decoder import ProtobufDecoder
from headrace.formats.protobuf.descriptors import files_in, files_of, message_of
from headrace.formats.protobuf.plan import plan_of
from headrace.formats.registry import SchemaRegistry, settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
    from headrace.formats.registry import RegistrySettings

_FACTORY = "headrace.formats.protobuf.reader:protobuf_decoder"

#: The form in which the registry gives what needs no compiler.
_FORM = "serialized"


def protobuf_decoder(files: bytes, message: str, registry: RegistrySettings) -> ProtobufDecoder:
    """Return the decoder of one process. Nothing is asked of the registry yet."""
    found = message_of(files_in(files), message)
    return ProtobufDecoder(found, SchemaRegistry(registry, form=_FORM))


def decoder_of(chosen: ReaderSchemaConfig, registry: RegistryConfig) -> CustomDecoder:
    """Return the decoder of a channel, whose columns are fixed from then on. May ask the registry.

    Raises:
        ConfigError: the reader's message is none, or has what columns cannot hold.
        StartError: the registry does not have it, or does not answer.
    """
    settings = settings_of(registry)
    try:
        files = _files(chosen, settings)
        message = _checked(files, chosen.message)
    except ProtobufSchemaError as error:
        raise ConfigError([f"reader_schema {chosen.named}: {error}"]) from error
    every = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    options = {"files": every, "message": message.full_name, "registry": settings}
    return CustomDecoder(_FACTORY, options)


def file_fault(file: Path, message: str | None) -> str | None:
    """Return why a file has no message to read by, None where it has one."""
    try:
        _checked(files_in(file.read_bytes()), message)
    except OSError as error:
        return f"{file} cannot be read: {error}; correct the path"
    except ProtobufSchemaError as error:
        return f"{file}: {error}"
    return None


def _checked(files: Sequence[FileDescriptorProto], name: str | None) -> Descriptor:
    found = message_of(files, name)
    plan_of(found)
    if KAFKA_COLUMN in found.fields_by_name:
        raise ProtobufSchemaError(f"the message uses the reserved name {KAFKA_COLUMN!r}")
    return found


def _files(chosen: ReaderSchemaConfig, settings: RegistrySettings) -> list[FileDescriptorProto]:
    if chosen.file is not None:
        try:
            return files_in(chosen.file.read_bytes())
        except OSError as error:
            raise ConfigError(
                [f"reader_schema.file: {chosen.file} cannot be read: {error}; correct the path"]
            ) from error
    registry = SchemaRegistry(settings, form=_FORM)
    try:
        if chosen.id is not None:
            found = registry.schema_now(chosen.id)
        else:
            found = registry.version(chosen.subject or "", str(chosen.version))
    except (RegistryError, UnknownSchemaError) as error:
        raise StartError(f"there is no reader's schema {chosen.named} now: {error}") from error
    if found.kind != "PROTOBUF":
        raise ProtobufSchemaError(f"the schema is of type {found.kind}, not PROTOBUF")
    return files_of(found)
