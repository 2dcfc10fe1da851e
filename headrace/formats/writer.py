"""Rows as values of a format with the frame of a schema registry, for sinks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headrace.core.errors import ConfigError, ResultMisfitError, RowsRefusedError, StartError
from headrace.core.extras import Extra, required
from headrace.formats import derived, json_encoder, pieces
from headrace.formats.avro.encoder import AvroEncoder, check_writable
from headrace.formats.avro.schema import parse_schema
from headrace.formats.errors import (
    AvroSchemaError,
    ProtobufSchemaError,
    RegistryError,
    SchemaRefusedError,
    UnknownSchemaError,
)
from headrace.formats.json_encoder import JsonEncoder
from headrace.formats.registry import NewSchema, SchemaRegistry, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config.models.registry import RegistryConfig, WriterSchemaConfig
    from headrace.formats.pieces import Misfits
    from headrace.formats.registry import RegisteredSchema

log = structlog.get_logger(__name__)

#: Rows that are written at a time.
CHUNK = 16_384

#: Types of rows whose encoders are kept: a reducer makes one, or a few.
_MOST_KINDS = 64

#: What says that a schema cannot be used, or not for these columns.
_WRONG = (AvroSchemaError, ProtobufSchemaError, SchemaRefusedError)


class Encoder(Protocol):
    """Makes values of rows of one type. Any thread."""

    def values(self, rows: pa.StructArray, misfits: Misfits) -> pa.Array:
        """Return the value of each row without a frame, of a null row anything."""
        ...


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema to write by. ``name`` is that of its record; ``after_id`` what a frame ends with.

    ``imports`` are the schemas that it names, each after those that it names itself: the name of
    each, its text, and the names in it. ``encoder`` returns what writes rows of a type, and raises
    an error of :data:`_WRONG`.
    """

    kind: str
    text: str
    name: str
    encoder: Callable[[pa.StructType], Encoder]
    after_id: bytes = b""
    names: tuple[str, ...] = ()
    imports: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


def avro_of(text: str, references: tuple[str, ...] = ()) -> WriterSchema:
    """Return a schema of Avro.

    Raises:
        AvroSchemaError: it is none, or has what no column holds.
    """
    writer = parse_schema(text, references)
    check_writable(writer)
    return WriterSchema("AVRO", text, writer.name, lambda kind: AvroEncoder(writer, kind))


def json_of(text: str) -> WriterSchema:
    """Return a JSON schema.

    Raises:
        SchemaRefusedError: it is none of an object.
    """
    schema = json_encoder.from_text(text)
    name = str(schema.get("title") or "")
    return WriterSchema("JSON", text, name, lambda kind: JsonEncoder(schema, kind))


class ValueWriter:
    """Writes rows as values by a schema that the registry has. One thread at a time; blocks.

    A known id is not asked for again.
    """

    def __init__(self, format_: str, chosen: WriterSchemaConfig, registry: RegistryConfig) -> None:
        #: avro, protobuf or json_schema.
        self.format = format_
        self._chosen = chosen
        form = "serialized" if format_ == "protobuf" else None
        self._registry = SchemaRegistry(settings_of(registry), form=form)
        self._given: WriterSchema | None = None
        self._number: int | None = None
        #: Ids by subjects and texts.
        self._numbers: dict[tuple[str, str], int] = {}
        #: Schemas and their encoders by the types of rows, and by the names of derived records.
        self._encoders: dict[tuple[pa.StructType, str], tuple[WriterSchema, Encoder]] = {}

    def open(self, topic: str | None) -> None:
        """Read the schema, and register it for the topic; what is made of columns, later.

        Where the registry does not answer, that is left to the first rows.

        Raises:
            ConfigError: the schema is none, or has what columns do not hold.
            StartError: the registry does not have it, or refuses it.
        """
        if self.format == "protobuf":
            with required(Extra.PROTOBUF, "encode: protobuf"):
                import_module("headrace.formats.protobuf.writer")
        try:
            given = self._schema()
            if given is not None:
                pieces.functions()
                topics = [] if topic is None and self._by_topic else [topic or ""]
                for each in topics:
                    self._number_for(given, each)
        except RegistryError as error:
            log.warning("writer_schema_later", schema=self._chosen.named, error=str(error))
        except UnknownSchemaError as error:
            raise StartError(f"writer_schema {self._chosen.named}: {error}; {_REGISTER}") from error
        except SchemaRefusedError as error:
            raise StartError(f"writer_schema {self._chosen.named}: {error}") from error
        except (AvroSchemaError, ProtobufSchemaError) as error:
            raise ConfigError([f"writer_schema {self._chosen.named}: {error}"]) from error

    def written(self, rows: pa.ChunkedArray, topics: pa.ChunkedArray | str) -> pa.ChunkedArray:
        """Return the framed values of rows, null where a row is; ``topics`` says where each goes.

        Raises:
            ResultMisfitError: the columns are none of the schema, or the registry refuses it.
            RowsRefusedError: rows have what the schema cannot hold.
            RegistryError: the registry does not answer: the batch waits.
        """
        if not len(rows):  # of which the types say little
            return pa.chunked_array([], pieces.PIECES)
        if not pa.types.is_struct(rows.type):
            raise ResultMisfitError(
                f"column 'value' is {rows.type}, and encode: {self.format} writes structs, for "
                "instance struct('*') as value; change the reducer"
            )
        misfits = pieces.Misfits()
        frames = self._frames(rows.type, topics, len(rows))
        made, at = [], 0
        for chunk in rows.chunks:
            for start in range(0, len(chunk), CHUNK):
                part = chunk.slice(start, CHUNK)
                frame = frames if isinstance(frames, pa.Scalar) else frames.slice(at, len(part))
                made.append(self._framed(part, frame, topics, misfits))
                at += len(part)
        problems = misfits.sentences()
        if problems:
            raise RowsRefusedError(
                f"the rows do not fit the schema {self._chosen.named}: {'; '.join(problems)}; "
                "change the reducer"
            )
        return pa.chunked_array(made, pieces.PIECES)

    def _framed(
        self,
        rows: pa.StructArray,
        frame: pa.Scalar | pa.Array,
        topics: pa.ChunkedArray | str,
        misfits: Misfits,
    ) -> pa.Array:
        _, encoder = self._encoder(rows.type, self._record_name(topics))
        values = pieces.joined(frame, encoder.values(rows, misfits))
        return pc.if_else(pc.is_valid(rows), values, pa.scalar(None, pieces.PIECES))

    def _frames(
        self, kind: pa.StructType, topics: pa.ChunkedArray | str, count: int
    ) -> pa.Scalar | pa.Array:
        """Return what is in front of values: of all, or of each where topics have their own."""
        try:
            schema, _ = self._encoder(kind, self._record_name(topics))
            if isinstance(topics, str):
                return pieces.piece(self._frame(schema, topics))
            if not self._by_topic:
                return pieces.piece(self._frame(schema, ""))
            different = topics.combine_chunks().dictionary_encode()
            if isinstance(different, pa.ChunkedArray):
                different = different.combine_chunks()
            made = [self._frame(schema, each) for each in different.dictionary.to_pylist()]
        except UnknownSchemaError as error:
            raise ResultMisfitError(
                f"writer_schema {self._chosen.named}: {error}; {_REGISTER}"
            ) from error
        except _WRONG as error:
            raise ResultMisfitError(
                f"writer_schema {self._chosen.named}: {error}; change the reducer, or the schema"
            ) from error
        return pa.array(made, pieces.PIECES).take(different.indices.slice(0, count))

    def _frame(self, schema: WriterSchema, topic: str) -> bytes:
        return b"\0" + self._number_for(schema, topic).to_bytes(4, "big") + schema.after_id

    @property
    def _by_topic(self) -> bool:
        """Return whether a schema has another id for another topic."""
        return not self._chosen.is_registered and self._chosen.subject_name != "record"

    def _record_name(self, topics: pa.ChunkedArray | str) -> str:
        if self._chosen.name is not None or not isinstance(topics, str):
            return self._chosen.name or "Value"
        return derived.name_of(topics)

    # --- the schema, and what writes by it ----------------------------------------------------

    def _encoder(self, kind: pa.StructType, name: str) -> tuple[WriterSchema, Encoder]:
        found = self._encoders.get((kind, name))
        if found is None:
            schema = self._schema() or self._derived(kind, name)
            found = schema, schema.encoder(kind)
            self._encoders[kind, name] = found
            while len(self._encoders) > _MOST_KINDS:
                del self._encoders[next(iter(self._encoders))]
        return found

    def _derived(self, kind: pa.StructType, name: str) -> WriterSchema:
        if self.format == "avro":
            return avro_of(derived.avro_schema(kind, name))
        if self.format == "json_schema":
            return json_of(derived.json_schema(kind, name))
        from headrace.formats.protobuf.writer import schema_of_columns  # noqa: PLC0415

        return schema_of_columns(kind, name)

    def _schema(self) -> WriterSchema | None:
        """Return the schema that there is, None where it is made of columns."""
        if self._given is None and not self._chosen.is_derived:
            if self._chosen.is_registered:
                self._given = self._registered()
            else:
                self._given = schema_in(self.format, self._chosen)
        return self._given

    def _registered(self) -> WriterSchema:
        chosen = self._chosen
        if chosen.id is not None:
            found = self._registry.schema_now(chosen.id)
        else:
            found = self._registry.version(chosen.subject or "", str(chosen.version))
        kind = _KINDS[self.format]
        if found.kind != kind:
            raise SchemaRefusedError(f"the schema is of type {found.kind}, not {kind}")
        self._number = found.number
        return self._read(found)

    def _read(self, found: RegisteredSchema) -> WriterSchema:
        if self.format == "avro":
            return avro_of(found.text, found.references)
        if self.format == "json_schema":
            return json_of(found.text)
        from headrace.formats.protobuf.writer import schema_registered  # noqa: PLC0415 - an extra

        return schema_registered(found, self._chosen.message)

    # --- its id --------------------------------------------------------------------------------

    def _number_for(self, schema: WriterSchema, topic: str) -> int:
        if self._number is not None:
            return self._number
        subject = {
            "topic": f"{topic}-value",
            "record": schema.name,
            "topic_record": f"{topic}-{schema.name}",
        }[self._chosen.subject_name]
        if not schema.name and self._chosen.subject_name != "topic":
            raise SchemaRefusedError(
                f"the schema has no name, which subject_name: {self._chosen.subject_name} needs; "
                "give it a title"
            )
        found = self._numbers.get((subject, schema.text))
        if found is None:
            references = self._imported(schema)
            new = NewSchema(
                schema.kind, schema.text, tuple((name, *references[name]) for name in schema.names)
            )
            found = self._numbers[subject, schema.text] = self._named_id(subject, new)
        return found

    def _named_id(self, subject: str, new: NewSchema) -> int:
        normalize = self._chosen.normalize
        if self._chosen.register_schema:
            return self._registry.register(subject, new, normalize=normalize)
        return self._registry.look_up(subject, new, normalize=normalize)[0]

    def _imported(self, schema: WriterSchema) -> dict[str, tuple[str, int]]:
        """Return the subjects and the versions of the schemas that one names, by their names.

        Each is in the subject of its name, as Confluent's serializers have it.
        """
        found: dict[str, tuple[str, int]] = {}
        normalize = self._chosen.normalize
        for name, text, names in schema.imports:
            new = NewSchema(schema.kind, text, tuple((each, *found[each]) for each in names))
            if self._chosen.register_schema:
                self._registry.register(name, new, normalize=normalize)
            found[name] = name, self._registry.look_up(name, new, normalize=normalize)[1]
        return found


#: What to do about a schema that the registry lacks.
_REGISTER = "register it, or set writer_schema.register to true"

#: The registry's words for formats.
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}


def schema_in(format_: str, chosen: WriterSchemaConfig) -> WriterSchema:
    """Return the schema of a file, or the one that the configuration has itself.

    Raises:
        ConfigError: the file cannot be read.
        AvroSchemaError: the schema is none, or has what columns do not hold.
        ProtobufSchemaError: the same, of Protobuf.
        SchemaRefusedError: the same, of JSON.
    """
    try:
        data = chosen.file.read_bytes() if chosen.file is not None else b""
        text = data.decode() if format_ != "protobuf" else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            [f"writer_schema.file: {chosen.file} cannot be read: {error}; correct the path"]
        ) from error
    if format_ == "protobuf":
        from headrace.formats.protobuf.descriptors import files_in  # noqa: PLC0415 - an extra
        from headrace.formats.protobuf.writer import schema_of_files  # noqa: PLC0415

        return schema_of_files(files_in(data), chosen.message)
    return (avro_of if format_ == "avro" else json_of)(chosen.text or text)


def schema_fault(format_: str, chosen: WriterSchemaConfig) -> str | None:
    """Return why a file, or a text, is no schema to write by; None where it is one."""
    try:
        schema_in(format_, chosen)
    except ConfigError as error:
        return error.problems[0].removeprefix("writer_schema.file: ")
    except _WRONG as error:
        return f"is no schema to write by: {error}"
    return None
