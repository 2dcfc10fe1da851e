from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
from headrace.core.errors import ConfigError, StartError
from headrace.formats.errors import RegistryError, UnknownYetError
from headrace.formats.protobuf.decoder import MessageReader, ProtobufDecoder
from headrace.formats.protobuf.descriptors import files_in, message_of
from headrace.formats.protobuf.reader import decoder_of, file_fault
from headrace.formats.registry import ASK_AGAIN, RegistrySettings, SchemaRegistry
from headrace.testing import FakeClock
from headrace.testing.registry import RegistryServer
from tests.unit.formats.protobuf.messages import Producer, Proto, file, message, orders, register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor_pb2 import FileDescriptorProto


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


def decoder(registry: RegistryServer, clock: FakeClock | None = None) -> ProtobufDecoder:
    """Return a decoder to the columns of an order."""
    schemas = SchemaRegistry(RegistrySettings((registry.url,)), clock or FakeClock(), "serialized")
    return ProtobufDecoder(message_of(orders(), "shop.Order"), schemas)


def rows_of(of: ProtobufDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    """Return the rows and the reasons of values."""
    rows, bad = of.columns(pa.array(values, pa.binary()))
    rows.validate(full=True)
    return rows.to_pylist(), dict(bad)


def read(files: list[FileDescriptorProto], name: str, *values: bytes) -> Any:
    """Return the rows and the reasons of messages without frames."""
    rows, bad = MessageReader(message_of(files, name)).read(pa.array(values, pa.binary()))
    return rows.to_pylist(), bad


NOTHING = {"id": 0, "note": "", "to": None, "tags": [], "at": None}


def test_values_of_confluents_serializer_are_rows(registry: RegistryServer) -> None:
    """A second message of a file with imports is a row, and a tombstone is null."""
    write = Producer(registry, orders())
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    value = write.value(id=1, note="Tür", to={"street": "Am Wehr"}, tags=["a", "b"], at=at)
    of = decoder(registry)
    assert value[5:7] == b"\x02\x02"
    assert rows_of(of, value, None, write.value()) == (
        [
            {"id": 1, "note": "Tür", "to": {"street": "Am Wehr"}, "tags": ["a", "b"], "at": at},
            None,
            NOTHING,
        ],
        {},
    )
    large, _ = of.columns(pa.array([b"", value, None], pa.large_binary()).slice(1))
    assert large.to_pylist()[0]["note"] == "Tür"


def test_values_of_several_schemas_are_one_array(registry: RegistryServer) -> None:
    """Fields that the reader does not name are left out, those a writer lacks are as absent."""
    old = file()
    message(old, "Order", "int64 id 1")
    new = orders("double price 9")
    values = [
        Producer(registry, [old]).value(id=1),
        Producer(registry, new).value(id=2, price=1.5),
        Producer(registry, [old]).value(id=3),
    ]
    assert values[0][5] == 0
    rows, bad = rows_of(decoder(registry), *values)
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert not bad


def test_each_bad_value_has_its_reason(registry: RegistryServer) -> None:
    """No frame, another type or message, wrong indexes and damage are told apart, with the byte."""
    good = Producer(registry, orders()).value(id=1, note="abc")
    head, avro = good[:7], registry.register("other", '"string"').to_bytes(4, "big")
    text = registry.register("t", "message Order {}", schemaType="PROTOBUF").to_bytes(4, "big")
    line = Producer(registry, orders(), "shop.Order.Line").value(id=1)
    values = [
        b"",
        b"\1" + good[1:],
        b"\0" + avro + b"\0",
        b"\0" + text + b"\0",
        line,
        good[:5],
        good[:5] + b"\x02\x80",
        good[:5] + b"\x01",
        good[:5] + b"\x02\x0a",
        head + b"\x12\x05ab",
        head + b"\x12\x01\xff",
        head + b"\x0c",
        head + b"\x2a\x0a\x08" + b"\xff" * 8 + b"\x7f",
        good,
    ]
    rows, bad = rows_of(decoder(registry), *values)
    assert rows == [None] * 13 + [{**NOTHING, "id": 1, "note": "abc"}]
    number = int.from_bytes(good[1:5], "big")
    assert bad == {
        0: "it has no frame: a zero byte, and the id of its schema in four",
        1: "it has no frame: a zero byte, and the id of its schema in four",
        2: f"schema id {int.from_bytes(avro, 'big')}: it is of type AVRO, not PROTOBUF",
        3: f"schema id {int.from_bytes(text, 'big')}: the registry gives the schema as text; it "
        "has to know format=serialized, as Confluent's does",
        4: f"schema id {number}: it is a shop.Order.Line, and the reader's is shop.Order",
        5: f"schema id {number}: the indexes of its message are none",
        6: f"schema id {number}: the indexes of its message are none",
        7: f"schema id {number}: the indexes of its message are none",
        8: f"schema id {number}: it has no message at the indexes [5]",
        9: f"schema id {number}: field note: the value ends too early, at byte 1 of the message",
        10: f"schema id {number}: field note: the text is not UTF-8, at byte 2 of the message",
        11: f"schema id {number}: the bytes are no message, at byte 1 of the message",
        12: f"schema id {number}: field at: the time is of no year from 1 to 9999, or its "
        "nanoseconds are none",
    }


def test_an_unknown_id_is_the_records_fault_the_second_time(registry: RegistryServer) -> None:
    """The batch waits for half a minute; then the records with this id are bad, and no others."""
    clock = FakeClock()
    of = decoder(registry, clock)
    values = [b"\0\0\0\0\x63\0", Producer(registry, orders()).value(id=1)]
    with pytest.raises(UnknownYetError):
        rows_of(of, *values)
    clock.advance(ASK_AGAIN)
    rows, bad = rows_of(of, *values)
    assert rows == [None, {**NOTHING, "id": 1}]
    assert bad == {0: f"schema id 99: it is not known to the registry {registry.url}"}


def test_a_registry_that_is_away_makes_the_batch_wait(registry: RegistryServer) -> None:
    """An id that cannot be asked for now fails the batch as a whole; one that is known does not."""
    value = Producer(registry, orders()).value(id=1)
    of = decoder(registry)
    rows_of(of, value)
    registry.stop()
    assert rows_of(of, value)[0] == [{**NOTHING, "id": 1}]
    with pytest.raises(RegistryError):
        rows_of(of, value, value[:4] + b"\x42\0")


def test_many_frames_that_are_none_are_found_in_one_go(registry: RegistryServer) -> None:
    """Values with other indexes each have their reasons, and those between them are rows."""
    good = Producer(registry, orders()).value(id=1)
    values = [
        good if at % 2 else good[:5] + b"\x04" + bytes([2 * (at % 60)]) + b"\x7e"
        for at in range(2000)
    ]
    rows, bad = rows_of(decoder(registry), *values)
    assert list(bad) == list(range(0, 2000, 2))
    assert rows[1::2] == [{**NOTHING, "id": 1}] * 1000


def test_what_is_not_written_plainly_is_as_googles_reader_has_it() -> None:
    """A field twice, two members of a oneof and a key twice in a map are the last ones."""
    own = file()
    made = message(own, "M", "int32 a 1", "string b 2", "int32 c 3")
    made.oneof_decl.add(name="one")
    made.field[0].oneof_index = made.field[1].oneof_index = 0
    entry = message(made, "PricesEntry", "string key 1", "uint64 value 2")
    entry.options.map_entry = True
    prices = made.field.add(name="prices", number=4, label=Proto.LABEL_REPEATED)
    prices.type, prices.type_name = Proto.TYPE_MESSAGE, ".shop.M.PricesEntry"
    rows, bad = read(
        [own],
        "shop.M",
        b"\x18\x01\x18\x02",
        b"\x08\x01\x12\x01x",
        b"\x22\x05\x0a\x01k\x10\x01\x22\x05\x0a\x01k\x10\x02",
        b"\x18\x05",
    )
    nothing: dict[str, Any] = {"a": None, "b": None, "c": 0, "prices": []}
    assert rows == [
        {**nothing, "c": 2},
        {**nothing, "b": "x"},
        {**nothing, "prices": [("k", Decimal(2))]},
        {**nothing, "c": 5},
    ]
    assert not bad


def test_a_value_that_takes_more_memory_than_a_batch_may_is_bad_alone() -> None:
    """Empty messages in a list make items of many bytes: the others of the batch are rows."""
    own = file()
    message(own, "Item", *(f"uint64 f{at} {at}" for at in range(1, 100)))
    message(own, "M", "repeated shop.Item items 1")
    reader = MessageReader(message_of([own], "shop.M"), 1 << 20)
    values = [b"\x0a\0" * 3, b"\x0a\0" * 1000, b"\x0a\0" * 2]
    rows, bad = reader.read(pa.array(values, pa.binary()))
    assert [None if row is None else len(row["items"]) for row in rows.to_pylist()] == [3, None, 2]
    assert list(bad) == [1]
    assert "it takes more memory in columns than a batch may" in bad[1]


def _circle() -> FileDescriptorProto:
    own = file()
    message(own, "Order", "shop.Order next 1")
    return own


def _empty() -> FileDescriptorProto:
    own = file()
    message(own, "Nothing")
    message(own, "Order", "shop.Nothing none 1")
    return own


def _group() -> FileDescriptorProto:
    own = file(syntax="proto2")
    made = message(own, "Order")
    message(made, "Part", "int32 x 1")
    made.field.add(
        name="part", number=1, type=Proto.TYPE_GROUP, label=1, type_name=".shop.Order.Part"
    )
    return own


def _reserved() -> FileDescriptorProto:
    own = file()
    message(own, "Order", "int32 _kafka 1")
    return own


def _missing() -> FileDescriptorProto:
    own = file("orders.proto", "address.proto")
    message(own, "Order", "shop.Address to 1")
    return own


@pytest.mark.parametrize(
    ("own", "name", "reason"),
    [
        (_circle(), "shop.Order", "next has shop.Order in itself, which no column holds"),
        (_empty(), "shop.Order", "none is shop.Nothing, which has no fields; leave it out"),
        (_group(), "shop.Order", "part is a group, which is not decoded"),
        (_reserved(), "shop.Order", "the message uses the reserved name '_kafka'"),
        (_missing(), "shop.Order", "it imports address.proto, which it does not bring along"),
        (_circle(), "shop.Bill", "it has no message shop.Bill; there are shop.Order"),
        (file(), None, "it has no message"),
    ],
)
def test_a_message_that_columns_cannot_hold_is_refused(
    tmp_path: Path, registry: RegistryServer, own: FileDescriptorProto, name: str, reason: str
) -> None:
    """It is refused by the name of the field, at the start and where it is a file by the check."""
    register(registry, own)
    config = RegistryConfig(url=(registry.url,))
    with pytest.raises(ConfigError) as refused:
        decoder_of(ReaderSchemaConfig(subject="s", message=name), config)
    assert f"reader_schema s, version latest: {reason}" in str(refused.value)
    path = tmp_path / "orders.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[own]).SerializeToString())
    assert f"{path}: {reason}" in str(file_fault(path, name))


def test_a_reader_is_a_subject_an_id_or_a_file(tmp_path: Path, registry: RegistryServer) -> None:
    """Each gives the columns; the first message is taken where none is named."""
    config = RegistryConfig(url=(registry.url,))
    value = Producer(registry, orders()).value(id=1)
    path = tmp_path / "orders.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=orders()).SerializeToString())
    number = int.from_bytes(value[1:5], "big")
    for chosen in ({"subject": "orders-value"}, {"id": number}, {"file": str(path)}):
        made = decoder_of(ReaderSchemaConfig(**chosen, message="shop.Order"), config)
        made.load()
        assert made.columns(pa.array([value]))[0].to_pylist() == [{**NOTHING, "id": 1}]
        other = decoder_of(ReaderSchemaConfig(**chosen), config)
        other.load()
        assert other.kind == pa.struct([("x", pa.int32())])
    assert len(files_in(path.read_bytes())) == 2


def test_a_reader_that_is_not_there_says_why(tmp_path: Path, registry: RegistryServer) -> None:
    """A subject that is none, one of another type, and files that are none are told apart."""
    config = RegistryConfig(url=(registry.url,))
    with pytest.raises(StartError, match="has no version latest of subject s"):
        decoder_of(ReaderSchemaConfig(subject="s"), config)
    registry.register("avro", '"string"')
    with pytest.raises(ConfigError, match="the schema is of type AVRO, not PROTOBUF"):
        decoder_of(ReaderSchemaConfig(subject="avro"), config)
    path = tmp_path / "x.desc"
    assert "cannot be read" in str(file_fault(path, None))
    with pytest.raises(ConfigError, match="cannot be read"):
        decoder_of(ReaderSchemaConfig(file=str(path)), config)
    path.write_text("message Order {}")
    assert "write one with protoc --include_imports" in str(file_fault(path, None))
    path.write_bytes(b"")
    assert "it has no descriptor of a file" in str(file_fault(path, None))
