"""Values in JSON with frames, by Confluent's own serializer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.config.models.registry import RegistryConfig
from headrace.core.errors import ConfigError
from headrace.core.tables import Timestamps
from headrace.formats.errors import RegistryError, UnknownYetError
from headrace.formats.json_schema import JsonSchemaDecoder, decoder_of, with_columns
from headrace.formats.json_values import JsonDecoder
from headrace.formats.registry import ASK_AGAIN, RegistrySettings, SchemaRegistry
from headrace.testing import FakeClock
from headrace.testing.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS = {"type": "object", "title": "Address", "properties": {"street": {"type": "string"}}}
ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "to": {"$ref": "address.json"},
    },
}
KIND = pa.struct(
    [("id", pa.int64()), ("note", pa.string()), ("to", pa.struct([("street", pa.string())]))]
)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


def order(registry: RegistryServer, **fields: Any) -> bytes:
    """Return an order as a producer of Confluent's writes it, whose schema refers to another."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("address", Schema(json.dumps(ADDRESS), "JSON"))
        to = SchemaReference("address.json", "address", 1)
        write = JSONSerializer(Schema(json.dumps(ORDER), "JSON", [to]), client)
        written = write(fields, SerializationContext("orders", MessageField.VALUE))
    assert isinstance(written, bytes)
    return written


def decoder(registry: RegistryServer, clock: FakeClock | None = None) -> JsonSchemaDecoder:
    """Return a decoder to the columns of an order."""
    settings = RegistrySettings((registry.url,))
    return JsonSchemaDecoder(JsonDecoder(KIND), SchemaRegistry(settings, clock or FakeClock()))


def test_values_of_confluents_serializer_are_rows(registry: RegistryServer) -> None:
    """An object with an id whose schema refers to another is a row, and a tombstone is null."""
    values = [
        order(registry, id=1, note=None, to={"street": "Am Wehr"}),
        None,
        order(registry, id=2, note="Tür"),
    ]
    for kind in (pa.binary(), pa.large_binary()):
        rows, bad = decoder(registry).columns(pa.array([b"", *values], kind).slice(1))
        assert rows.to_pylist() == [
            {"id": 1, "note": None, "to": {"street": "Am Wehr"}},
            None,
            {"id": 2, "note": "Tür", "to": None},
        ]
        assert not bad


def test_each_bad_value_has_its_reason(registry: RegistryServer) -> None:
    """No frame, a schema of another type, no JSON and a wrong type are told apart."""
    good = order(registry, id=1)
    avro = registry.register("other", '"string"')
    values = [
        b"{}",
        b"",
        good[:4],
        b"\1" + good[1:],
        b"\0" + avro.to_bytes(4, "big") + b"{}",
        good[:5],
        good[:-1],
        good[:5] + b'{"id": "x"}',
        good,
    ]
    rows, bad = decoder(registry).columns(pa.array(values, pa.binary()))
    assert rows.to_pylist() == [None] * 8 + [{"id": 1, "note": None, "to": None}]
    no_frame = "it has no frame: a zero byte, and the id of its schema in four"
    assert [bad[place] for place in range(4)] == [no_frame] * 4
    assert list(bad) == list(range(8))
    assert bad[4] == f"schema id {avro}: it is of type AVRO, not JSON"
    assert all(bad[place].startswith("schema id 2: ") for place in (5, 6, 7))
    assert "[TYPE] field id: BIGINT is expected" in bad[7]
    with pytest.raises(KeyError):
        bad[8]


def test_an_unknown_id_is_the_records_fault_the_second_time(registry: RegistryServer) -> None:
    """The batch waits for half a minute; then the records with this id are bad, and no others."""
    clock = FakeClock()
    values = pa.array([b"\0\0\0\0\x63{}", order(registry, id=1)], pa.binary())
    of = decoder(registry, clock)
    with pytest.raises(UnknownYetError):
        of.columns(values)
    clock.advance(ASK_AGAIN)
    rows, bad = of.columns(values)
    assert rows.to_pylist()[0] is None
    assert dict(bad) == {0: f"schema id 99: it is not known to the registry {registry.url}"}


def test_a_registry_that_is_away_makes_the_batch_wait(registry: RegistryServer) -> None:
    """An id that cannot be asked for now fails the batch as a whole; one that is known does not."""
    known = order(registry, id=1)
    new = order(registry, id=1)[:4] + b"\x42{}"
    of = decoder(registry)
    of.columns(pa.array([known], pa.binary()))
    registry.stop()
    rows, _ = of.columns(pa.array([known], pa.binary()))
    assert rows.to_pylist()[0]["id"] == 1
    with pytest.raises(RegistryError):
        of.columns(pa.array([known, new], pa.binary()))


def test_columns_to_which_json_is_not_decoded_are_refused() -> None:
    """A column of another type is named at the start."""
    framed = decoder_of(RegistryConfig(url=("http://r",)))
    kind = pa.struct([("a", pa.struct([("b", pa.list_(pa.binary()))]))])
    with pytest.raises(ConfigError, match=r"column a\.b is binary, to which"):
        with_columns(framed, kind, Timestamps.ISO)
