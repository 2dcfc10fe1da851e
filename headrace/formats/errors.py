"""Errors of schemas, and of the registry that has them."""

from __future__ import annotations

from headrace.core.errors import HeadraceError, RetryableError


class AvroSchemaError(HeadraceError):
    """A schema of Avro is none, or has what columns cannot hold."""


class ProtobufSchemaError(HeadraceError):
    """A schema of Protobuf is none, or has what columns cannot hold."""


class RegistryError(RetryableError):
    """The schema registry does not answer, or not with a schema. Batches wait for it."""


class UnknownYetError(RegistryError):
    """The schema registry said once that it has no schema of this id, and is asked again."""


class UnknownSchemaError(HeadraceError):
    """The schema registry has no schema of this id, subject or version."""


class SchemaRefusedError(HeadraceError):
    """A schema to write values by is none, or the schema registry refuses it."""
