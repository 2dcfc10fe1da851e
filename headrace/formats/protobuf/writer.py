"""Messages as schemas to write by, and as the registry takes them."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2

from headrace.formats.errors import ProtobufSchemaError
from headrace.formats.protobuf.derived import file_of_columns
from headrace.formats.protobuf.descriptors import files_of, message_of
from headrace.formats.protobuf.encoder import ProtobufEncoder, varint
from headrace.formats.writer import WriterSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from headrace.formats.registry import RegisteredSchema

#: Files that each reader has, and no registry: as Confluent's serializers pass them over.
_KNOWN = ("google/", "confluent/")


def schema_of_files(files: Sequence[FileDescriptorProto], name: str | None) -> WriterSchema:
    """Return a message of the last of files.

    Raises:
        ProtobufSchemaError: there is none of this name, or the files do not fit together.
    """
    message = message_of(files, name)
    own = next((each for each in files if each.name == message.file.name), files[-1])
    by_name = {each.name: each for each in files}
    imports: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    _import(own, by_name, imports)
    imports.pop(own.name)
    return WriterSchema(
        "PROTOBUF",
        _text(own),
        message.full_name,
        lambda kind: ProtobufEncoder(message, kind),
        _indexes(own, message),
        _names(own, by_name),
        tuple(imports.values()),
    )


def schema_registered(registered: RegisteredSchema, name: str | None) -> WriterSchema:
    """Return a message of a schema that the registry has.

    Raises:
        ProtobufSchemaError: there is none of this name, it is of a file that the schema imports,
            or the files do not fit together.
    """
    files = files_of(registered)
    message = message_of(files, name)
    if message.file.name != files[-1].name:
        raise ProtobufSchemaError(
            f"message {message.full_name} is of {message.file.name}, which the schema imports, and "
            "frames would name the schema itself; give the subject or the id of that file's own "
            "schema"
        )
    return schema_of_files(files, name)


def schema_of_columns(kind: pa.StructType, name: str) -> WriterSchema:
    """Return the message of columns.

    Raises:
        SchemaRefusedError: a column has a type that Protobuf does not have, or no name.
        ProtobufSchemaError: names of its fields collide.
    """
    return schema_of_files([file_of_columns(kind, name)], name)


def _import(
    file: FileDescriptorProto,
    files: dict[str, FileDescriptorProto],
    found: dict[str, tuple[str, str, tuple[str, ...]]],
) -> None:
    """Add a file after those that it imports."""
    for name in _names(file, files):
        if name not in found:
            _import(files[name], files, found)
    found[file.name] = file.name, _text(file), _names(file, files)


def _names(file: FileDescriptorProto, files: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in file.dependency if name in files and not name.startswith(_KNOWN))


def _text(file: FileDescriptorProto) -> str:
    plain = descriptor_pb2.FileDescriptorProto()
    plain.CopyFrom(file)
    plain.ClearField("source_code_info")
    return b64encode(plain.SerializeToString(deterministic=True)).decode()


def _indexes(file: FileDescriptorProto, message: Descriptor) -> bytes:
    """Return the places of a message in its file as a frame has them; the first is a zero."""
    inside, places = file.message_type, []
    for name in _path(message):
        at = [each.name for each in inside].index(name)
        places.append(at)
        inside = inside[at].nested_type
    if places == [0]:
        return b"\0"
    return b"".join(varint(number << 1) for number in (len(places), *places))


def _path(message: Descriptor) -> list[str]:
    """Return the names of a message and of those that it is in, the outermost first."""
    outer = message.containing_type
    return [*(_path(outer) if outer is not None else ()), message.name]
