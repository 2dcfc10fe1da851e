from __future__ import annotations

import json
from base64 import b64decode, b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from headrace.config.models.registry import RegistryConfig, WriterSchemaConfig
from headrace.core.errors import ConfigError, ResultMisfitError, RowsRefusedError, StartError
from headrace.formats.errors import RegistryError
from headrace.formats.protobuf.descriptors import message_of
from headrace.formats.registry import WAITS
from headrace.formats.writer import ValueWriter
from headrace.testing.registry import RegistryServer
from tests.unit.formats.protobuf.messages import file, message, orders, register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
KIND = pa.struct([("id", pa.int64()), ("note", pa.string())])
ROWS = [{"id": 5, "note": "Tür"}, None, {"id": -6, "note": None}]
CONTEXT = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


@pytest.fixture
def client(server: RegistryServer) -> Iterator[SchemaRegistryClient]:
    """Confluent's client, with which readers look schemas up."""
    with SchemaRegistryClient({"url": server.url}) as made:
        yield made


def column(rows: list[Any], kind: pa.DataType = KIND) -> pa.ChunkedArray:
    """Return rows in two chunks."""
    made = pa.array(rows, kind)
    return pa.chunked_array([made[:1], made[1:]])


def writer(server: RegistryServer, format_: str = "avro", **schema: Any) -> ValueWriter:
    """Return a writer with this section."""
    chosen = WriterSchemaConfig.model_validate(schema)
    return ValueWriter(format_, chosen, RegistryConfig(url=(server.url,)))


def written(made: ValueWriter, rows: pa.ChunkedArray, topics: Any = "orders") -> list[Any]:
    """Return the values of rows, after the start."""
    made.open(topics if isinstance(topics, str) else None)
    values: list[Any] = made.written(rows, topics).to_pylist()
    return values


@pytest.mark.parametrize("schema", [{"text": json.dumps(ORDER)}, {}, {"name": "shop.Order"}])
def test_values_in_avro_are_read_by_confluents_deserializer(
    server: RegistryServer, client: SchemaRegistryClient, schema: dict[str, Any]
) -> None:
    """Rows of a schema that is given, or made of them, come back; one that is null is null."""
    values = written(writer(server, **schema), column(ROWS))
    read = AvroDeserializer(client)
    assert [None if each is None else read(each, CONTEXT) for each in values] == ROWS
    assert values[0][:5] == b"\0\0\0\0\1"
    assert client.get_latest_version("orders-value").schema_id == 1


def test_values_in_json_are_read_by_confluents_deserializer(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    """Objects are such by the schema that is made of columns; a field that is null is left out."""
    values = written(writer(server, "json_schema"), column(ROWS))
    read = JSONDeserializer(None, schema_registry_client=client)
    found = [None if each is None else read(each, CONTEXT) for each in values]
    assert found == [{"id": 5, "note": "Tür"}, None, {"id": -6}]


@pytest.mark.parametrize("is_given", [True, False])
def test_values_in_protobuf_are_read_by_confluents_deserializer(
    server: RegistryServer, client: SchemaRegistryClient, tmp_path: Path, is_given: bool
) -> None:
    """Messages of files that import others, and those made of columns, come back."""
    schema: dict[str, Any] = {"name": "shop.Order"}
    files = orders()
    if is_given:
        every = descriptor_pb2.FileDescriptorSet(file=files)
        (tmp_path / "orders.bin").write_bytes(every.SerializeToString())
        schema = {"file": str(tmp_path / "orders.bin"), "message": "shop.Order"}
    values = written(writer(server, "protobuf", **schema), column(ROWS))
    registered = client.get_latest_version("orders-value")
    if not is_given:
        own = descriptor_pb2.FileDescriptorProto()
        own.ParseFromString(b64decode(registered.schema.schema_str or ""))
        files = [own]
    kind = GetMessageClass(message_of(files, "shop.Order"))
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
    found = [None if each is None else MessageToDict(read(each, CONTEXT)) for each in values]
    assert found == [{"id": "5", "note": "Tür"}, None, {"id": "-6"}]
    references = [(each.name, each.version) for each in registered.schema.references or ()]
    assert references == ([("address.proto", 1)] if is_given else [])


def test_a_message_in_another_has_its_places_in_the_frame(
    server: RegistryServer, tmp_path: Path
) -> None:
    """The indexes lead to the message that is written."""
    own = file()
    message(own, "Other", "int64 id 1")
    message(message(own, "Outer", "int64 id 1"), "Order", "int64 id 1", "string note 2")
    every = descriptor_pb2.FileDescriptorSet(file=[own])
    (tmp_path / "it.bin").write_bytes(every.SerializeToString())
    made = writer(server, "protobuf", file=str(tmp_path / "it.bin"), message="shop.Outer.Order")
    assert written(made, column(ROWS))[0][5:8] == b"\4\2\0"


@pytest.mark.parametrize(
    ("named", "subject"),
    [
        ("topic", "orders-value"),
        ("record", "shop.Order"),
        ("topic_record", "orders-shop.Order"),
    ],
)
def test_a_schema_is_registered_by_the_strategy(
    server: RegistryServer, client: SchemaRegistryClient, named: str, subject: str
) -> None:
    """The subject is named by the topic, the record or both; a start registers before any row."""
    writer(server, text=json.dumps(ORDER), subject_name=named).open("orders")
    assert client.get_latest_version(subject).schema_id == 1


def test_each_topic_of_the_rows_has_its_own_subject(server: RegistryServer) -> None:
    """The id in each value is one of its topic's subject, where rows say where they go."""
    server.register("b-value", '"string"')
    made = writer(server, text=json.dumps(ORDER))
    topics = pa.chunked_array([pa.array(["a", "b", "a"])])
    values = written(made, column(ROWS), topics)
    assert [None if each is None else each[4] for each in values] == [2, None, 2]
    posted = [path for path in server.asked if path.endswith("/versions")]
    assert posted == ["/subjects/a-value/versions", "/subjects/b-value/versions"]


def test_a_schema_of_the_registry_is_written_by_its_id(server: RegistryServer) -> None:
    """A subject's latest version, or an id, is taken as it is, and nothing is registered."""
    server.register("other", '"string"')
    number = server.register("mine", json.dumps(ORDER))
    for schema in ({"subject": "mine"}, {"id": number}, {"subject": "mine", "version": 1}):
        server.asked.clear()
        assert written(writer(server, **schema), column(ROWS))[0][4] == number
        assert not [path for path in server.asked if "orders" in path]


def test_a_known_id_is_not_asked_for_again(server: RegistryServer) -> None:
    """Later rows of the same type ask nothing."""
    made = writer(server)
    written(made, column(ROWS))
    server.asked.clear()
    made.written(column(ROWS), "orders")
    assert server.asked == []


def test_a_schema_has_to_be_there_where_it_is_not_to_be_registered(
    server: RegistryServer,
) -> None:
    """Without it the start fails and says how to go on; with it, its id is taken."""
    text = json.dumps(ORDER)
    with pytest.raises(StartError, match=r"not have the schema in subject orders-value; register"):
        writer(server, text=text, register=False).open("orders")
    number = server.register("orders-value", text)
    assert written(writer(server, text=text, register=False), column(ROWS))[0][4] == number


def test_a_schema_that_the_registry_refuses_ends_the_start_with_its_reason(
    server: RegistryServer,
) -> None:
    """An incompatible one that is given is refused before any row is read."""
    server.refusal = "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/2"
    with pytest.raises(StartError, match=r"refuses the schema: READER_FIELD_MISSING_DEFAULT"):
        writer(server, text=json.dumps(ORDER)).open("orders")


def test_a_schema_of_columns_that_the_registry_refuses_is_a_misfit(server: RegistryServer) -> None:
    """No row is to blame, and the text has the registry's reason."""
    made = writer(server)
    made.open("orders")
    server.refusal = "TYPE_MISMATCH"
    with pytest.raises(ResultMisfitError, match="refuses the schema: TYPE_MISMATCH"):
        made.written(column(ROWS), "orders")


def test_a_registry_that_is_away_makes_rows_wait(server: RegistryServer) -> None:
    """The start goes on, rows wait with words that readiness knows, and are written later."""
    made = writer(server, text=json.dumps(ORDER))
    server.status = HTTPStatus.SERVICE_UNAVAILABLE
    made.open("orders")
    with pytest.raises(RegistryError, match=WAITS):
        made.written(column(ROWS), "orders")
    server.status = None
    assert made.written(column(ROWS), "orders")[0].as_py()[:5] == b"\0\0\0\0\1"


def test_no_rows_register_nothing(server: RegistryServer) -> None:
    """A result without rows may have columns of any type."""
    made = writer(server)
    assert written(made, pa.chunked_array([], pa.null())) == []
    assert server.asked == []


def test_the_registry_is_asked_to_normalize(server: RegistryServer) -> None:
    """The question says so, where that is configured."""
    writer(server, text=json.dumps(ORDER), normalize=True).open("orders")
    assert server.asked == ["/subjects/orders-value/versions?normalize=true"]


def test_rows_that_the_schema_cannot_hold_are_refused(server: RegistryServer) -> None:
    """The rows are to blame, and the text names the field and the schema."""
    made = writer(server, text=json.dumps(ORDER))
    with pytest.raises(RowsRefusedError, match="schema of text: field id is null in 1 values;"):
        written(made, column([{"id": None, "note": None}, ROWS[0]]))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.string(), r"column 'value' is string, and encode: avro writes structs"),
        (pa.struct([("id", pa.string())]), "field id is string, and the schema takes a whole"),
    ],
)
def test_columns_that_are_none_of_the_schema_are_a_misfit(
    server: RegistryServer, kind: pa.DataType, said: str
) -> None:
    """No row is to blame: the reducer has to be changed."""
    with pytest.raises(ResultMisfitError, match=said):
        written(writer(server, text=json.dumps(ORDER)), column([None, None], kind))


@pytest.mark.parametrize(
    ("format_", "text", "said"),
    [
        ("avro", '"long"', "it must be a record"),
        ("json_schema", '{"type": "array"}', "the schema is none of an object"),
        ("json_schema", "{", "the schema is not JSON"),
    ],
)
def test_a_text_that_is_no_schema_ends_the_start(
    server: RegistryServer, format_: str, text: str, said: str
) -> None:
    """The error says what it is not."""
    with pytest.raises((ConfigError, StartError), match=said):
        writer(server, format_, text=text).open("orders")


def test_a_message_of_an_imported_file_is_no_message_of_a_registered_schema(
    server: RegistryServer,
) -> None:
    """The start refuses it, as its frames would lead to another message of the schema."""
    address, own = orders()
    register(server, address, "address.proto")
    text = b64encode(own.SerializeToString()).decode()
    references = [{"name": "address.proto", "subject": "address.proto", "version": 1}]
    server.register("orders", text, schemaType="PROTOBUF", references=references)
    writer(server, "protobuf", subject="orders", message="shop.Order").open("orders")
    made = writer(server, "protobuf", subject="orders", message="shop.Address")
    with pytest.raises(
        ConfigError, match=r"shop\.Address is of address\.proto, which the schema imports"
    ):
        made.open("orders")


def test_a_schema_of_another_format_is_none_to_write_by(server: RegistryServer) -> None:
    """The start names both formats."""
    server.register("mine", b64encode(b"").decode(), schemaType="PROTOBUF")
    with pytest.raises(StartError, match="of type PROTOBUF, not AVRO"):
        writer(server, subject="mine").open("orders")
