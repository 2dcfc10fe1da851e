"""Descriptors of messages, from a schema registry or from a file."""

from __future__ import annotations

import binascii
import importlib
from base64 import b64decode
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from headrace.formats.errors import ProtobufSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

    from headrace.formats.registry import RegisteredSchema

#: The file that a registered schema is, which has no name of its own.
_OWN_NAME = "registered.proto"

#: Where files are that each producer has, and no registry: Google's own.
_COMMON = "google/"

#: Files of options for a registry's rules, without which messages are the same.
_OPTIONS = "confluent/"


def file_of(text: str) -> FileDescriptorProto:
    """Return the file that a registry gives as a serialized descriptor.

    Raises:
        ProtobufSchemaError: it is none.
    """
    found = descriptor_pb2.FileDescriptorProto()
    try:
        found.ParseFromString(b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise ProtobufSchemaError(
            "the registry gives the schema as text; it has to know format=serialized, as "
            "Confluent's does"
        ) from error
    return found


def files_of(registered: RegisteredSchema) -> list[FileDescriptorProto]:
    """Return the files of a registered schema, its own last.

    Raises:
        ProtobufSchemaError: one is none.
    """
    files = []
    for name, text in zip(registered.names, registered.references, strict=True):
        files.append(file_of(text))
        files[-1].name = name
    own = file_of(registered.text)
    own.name = _OWN_NAME
    return [*files, own]


def files_in(data: bytes) -> list[FileDescriptorProto]:
    """Return the files of a set of descriptors, as protoc writes it.

    Raises:
        ProtobufSchemaError: it is none.
    """
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(data)
    except DecodeError as error:
        raise ProtobufSchemaError(
            "it is no set of descriptors; write one with protoc --include_imports "
            "--descriptor_set_out"
        ) from error
    if not found.file:
        raise ProtobufSchemaError("it has no descriptor of a file")
    return list(found.file)


def message_of(files: Sequence[FileDescriptorProto], name: str | None) -> Descriptor:
    """Return the message of this full name, without one the first of the last file.

    Raises:
        ProtobufSchemaError: there is none, or the files do not fit together.
    """
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for each in files:
        _add(pool, each, files, added)
    own = files[-1]
    if name is None:
        if not own.message_type:
            raise ProtobufSchemaError("it has no message")
        name = _full(own.package, own.message_type[0].name)
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        there = ", ".join(_names(own.package, own.message_type)) or "none"
        raise ProtobufSchemaError(f"it has no message {name}; there are {there}") from None


def name_at(file: FileDescriptorProto, places: Sequence[int]) -> str | None:
    """Return the full name of the message at these indexes, None where there is none."""
    name, inside = str(file.package), file.message_type
    for place in places:
        if not 0 <= place < len(inside):
            return None
        found = inside[place]
        name, inside = _full(name, found.name), found.nested_type
    return name


def _names(package: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for each in messages:
        if not each.options.map_entry:
            yield _full(package, each.name)
            yield from _names(_full(package, each.name), each.nested_type)


def _full(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name


def _add(
    pool: descriptor_pool.DescriptorPool,
    file: FileDescriptorProto,
    files: Sequence[FileDescriptorProto],
    added: set[str],
) -> None:
    """Add a file after those that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    own = descriptor_pb2.FileDescriptorProto()
    own.CopyFrom(file)
    del own.dependency[:], own.public_dependency[:], own.weak_dependency[:]
    for place, name in enumerate(file.dependency):
        found = next((each for each in files if each.name == name), None) or _common(name)
        if found is None and name.startswith(_OPTIONS):
            continue
        if found is None:
            raise ProtobufSchemaError(f"it imports {name}, which it does not bring along")
        _add(pool, found, files, added)
        if place in file.public_dependency:
            own.public_dependency.append(len(own.dependency))
        own.dependency.append(name)
    try:
        pool.AddSerializedFile(own.SerializeToString())
    except (TypeError, ValueError) as error:
        raise ProtobufSchemaError(f"{file.name} is no schema: {error}") from error


def _common(name: str) -> FileDescriptorProto | None:
    """Return one of Google's own files, None where it is none that is installed."""
    if not name.startswith(_COMMON) or not name.endswith(".proto"):
        return None
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found
