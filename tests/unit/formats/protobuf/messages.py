"""Orders in Protobuf, and what serializes them as producers of Confluent's do."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass

from headrace.formats.protobuf.descriptors import message_of

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

    from headrace.testing.registry import RegistryServer

Proto = descriptor_pb2.FieldDescriptorProto

#: The types of fields that are named in short.
_TYPES = {
    "int32": Proto.TYPE_INT32,
    "int64": Proto.TYPE_INT64,
    "uint64": Proto.TYPE_UINT64,
    "string": Proto.TYPE_STRING,
    "double": Proto.TYPE_DOUBLE,
    "bytes": Proto.TYPE_BYTES,
    "bool": Proto.TYPE_BOOL,
}


def file(name: str = "orders.proto", *imports: str, syntax: str = "proto3") -> FileDescriptorProto:
    """Return a file of package shop without messages."""
    return descriptor_pb2.FileDescriptorProto(
        name=name, package="shop", syntax=syntax, dependency=imports
    )


def message(into: Any, name: str, *fields: str) -> DescriptorProto:
    """Add a message to a file or a message; its fields are as in 'repeated string tags 4'."""
    made = (into.message_type if hasattr(into, "message_type") else into.nested_type).add(name=name)
    for text in fields:
        *label, kind, field, number = text.split()
        of = made.field.add(name=field, number=int(number))
        of.label = Proto.LABEL_REPEATED if label == ["repeated"] else Proto.LABEL_OPTIONAL
        if kind in _TYPES:
            of.type = _TYPES[kind]
        else:
            of.type, of.type_name = Proto.TYPE_MESSAGE, f".{kind}"
    return made


def orders(*more: str) -> list[FileDescriptorProto]:
    """Return the files of an order, of which the last refers to the first, and to Google's."""
    address = file("address.proto")
    message(address, "Address", "string street 1")
    own = file("orders.proto", "address.proto", "google/protobuf/timestamp.proto")
    message(own, "Other", "int32 x 1")
    made = message(
        own,
        "Order",
        "int64 id 1",
        "string note 2",
        "shop.Address to 3",
        "repeated string tags 4",
        "google.protobuf.Timestamp at 5",
        *more,
    )
    message(made, "Line", "int64 id 1")
    return [address, own]


class Producer:
    """Serializes messages by one schema, and registers it, as a producer of Confluent's does."""

    def __init__(
        self, registry: RegistryServer, files: list[FileDescriptorProto], name: str = "shop.Order"
    ) -> None:
        self.type = GetMessageClass(message_of(files, name))
        self._url = registry.url

    def value(self, **fields: Any) -> bytes:
        """Return the value of a message."""
        with SchemaRegistryClient({"url": self._url}) as client:
            write = ProtobufSerializer(self.type, client)
            made = write(self.type(**fields), SerializationContext("orders", MessageField.VALUE))
        assert isinstance(made, bytes)
        return made


def register(registry: RegistryServer, own: FileDescriptorProto, subject: str = "s") -> int:
    """Return the id of a file that is registered by itself."""
    text = b64encode(own.SerializeToString()).decode()
    return registry.register(subject, text, schemaType="PROTOBUF")
