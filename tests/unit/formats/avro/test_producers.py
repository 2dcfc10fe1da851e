"""Values by Confluent's own serializers: with ids in headers, and schemas that refer to others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.core.columns import HEADERS
from headrace.core.decoders import CustomDecoder, decoded_rows
from headrace.core.errors import RetryableError
from headrace.formats.avro.decoder import AvroDecoder
from headrace.formats.avro.schema import parse_schema
from headrace.formats.framing import HEADER
from headrace.formats.registry import ASK_AGAIN, RegistrySettings, SchemaRegistry
from headrace.testing import FakeClock
from headrace.testing.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    Headers = list[tuple[str, str | bytes | None]]

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


def serialized(
    server: RegistryServer, schema: Any, value: Any, *, in_header: bool, field: str = "value"
) -> tuple[bytes, Headers]:
    """Return the value and the headers that a producer of Confluent's makes."""
    conf = {"schema.id.serializer": header_schema_id_serializer} if in_header else {}
    given = schema if isinstance(schema, Schema) else json.dumps(schema)
    headers: Headers = []
    kind = MessageField.VALUE if field == "value" else MessageField.KEY
    with SchemaRegistryClient({"url": server.url}) as client:
        write = AvroSerializer(client, given, conf=conf)
        written = write(value, SerializationContext("orders", kind, headers))
    assert isinstance(written, bytes)
    return written, headers


def columns(
    decoder: AvroDecoder, *records: tuple[bytes | None, Headers | None]
) -> tuple[list[Any], dict[int, str]]:
    """Return rows and reasons of records."""
    values = pa.array([value for value, _ in records], pa.binary())
    made = [
        headers if headers is None else [{"key": key, "value": value} for key, value in headers]
        for _, headers in records
    ]
    rows, bad = decoder.columns(values, pa.array(made, HEADERS))
    return rows.to_pylist(), dict(bad)


def decoder(server: RegistryServer, clock: FakeClock | None = None) -> AvroDecoder:
    """Return a decoder of orders with a client of the registry."""
    client = SchemaRegistry(RegistrySettings((server.url,)), clock or FakeClock())
    return AvroDecoder(parse_schema(json.dumps(ORDER)), client)


def test_values_whose_headers_name_their_schemas_are_decoded(server: RegistryServer) -> None:
    """Values without a frame, with one, and without headers come out in one batch."""
    header = serialized(server, ORDER, {"id": 300}, in_header=True)
    frame = serialized(server, ORDER, {"id": 2}, in_header=False)
    assert header[0] == b"\xd8\x04"
    assert [key for key, _ in header[1]] == [HEADER]
    number = 1
    in_id: Headers = [("other", None), (HEADER, b"\0" + number.to_bytes(4, "big")), (HEADER, b"?")]
    rows, bad = columns(
        decoder(server),
        header,
        (frame[0], [("trace", b"1")]),
        (None, header[1]),
        (frame[0], None),
        (header[0], in_id),
    )
    assert not bad
    assert [row and row["id"] for row in rows] == [300, 2, None, 2, 300]


def test_a_header_of_the_keys_schema_says_nothing_of_values(server: RegistryServer) -> None:
    """Only the value's own header is read."""
    _, of_key = serialized(server, ORDER, {"id": 1}, in_header=True, field="key")
    value, _ = serialized(server, ORDER, {"id": 2}, in_header=False)
    assert columns(decoder(server), (value, of_key)) == ([{"id": 2}], {})


def test_reasons_name_the_guid_of_a_header(server: RegistryServer) -> None:
    """Damaged values, unknown GUIDs and headers of another form are bad, each with its reason."""
    clock = FakeClock()
    value, headers = serialized(server, ORDER, {"id": 300}, in_header=True)
    of = decoder(server, clock)
    unknown: Headers = [(HEADER, b"\1" + bytes(16))]
    with pytest.raises(RetryableError, match="to know schema guid 00000000-"):
        columns(of, (value, unknown))
    clock.advance(ASK_AGAIN)
    rows, bad = columns(
        of, (value[:1], headers), (value, unknown), (value, [(HEADER, b"\1")]), (value, headers)
    )
    assert rows == [None, None, None, {"id": 300}]
    guid = server.guid(1)
    assert bad[0] == f"schema guid {guid}: field id: the value ends too early, at byte 0"
    zeros = "00000000-0000-0000-0000-000000000000"
    assert bad[1].startswith(f"schema guid {zeros}: it is not known to the registry")
    assert bad[2] == f"no schema: the header {HEADER} has neither an id nor a GUID"


def test_headers_of_a_slice_belong_to_its_values(server: RegistryServer) -> None:
    """Parts of columns are decoded by their own headers."""
    values, made = [], []
    for number in range(6):
        value, headers = serialized(server, ORDER, {"id": number}, in_header=number % 2 == 0)
        values.append(value)
        made.append([{"key": key, "value": said} for key, said in headers])
    rows, bad = decoder(server).columns(
        pa.array(values, pa.binary()).slice(1, 4), pa.array(made, HEADERS).slice(1, 4)
    )
    assert (rows.to_pylist(), dict(bad)) == ([{"id": n} for n in range(1, 5)], {})


def test_a_decoder_that_is_configured_gets_the_headers(server: RegistryServer) -> None:
    """The engines hand the records' headers on to decoders that read them."""
    value, headers = serialized(server, ORDER, {"id": 7}, in_header=True)
    custom = CustomDecoder(
        "headrace.formats.avro.reader:avro_decoder",
        {
            "reader": json.dumps(ORDER),
            "references": (),
            "registry": RegistrySettings((server.url,)),
        },
    )
    custom.load()
    assert custom.kind is not None
    made = pa.array([[{"key": key, "value": said} for key, said in headers]], HEADERS)
    rows, bad = decoded_rows(custom, pa.array([value], pa.binary()), custom.kind, made)
    assert (rows.to_pylist(), dict(bad)) == ([{"id": 7}], {})


def test_values_of_schemas_that_refer_to_others_are_decoded(server: RegistryServer) -> None:
    """References of references are found under their subjects, by writer and by reader alike."""
    country = {"type": "enum", "name": "geo.Country", "symbols": ["DE", "FR"]}
    address = {
        "type": "record",
        "name": "geo.Address",
        "fields": [{"name": "city", "type": "string"}, {"name": "country", "type": "geo.Country"}],
    }
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "to", "type": ["null", "geo.Address"]}, {"name": "id", "type": "int"}],
    }
    of_country = SchemaReference("geo.Country", "country", 1)
    of_address = SchemaReference("geo.Address", "address", 1)
    server.register("country", json.dumps(country))
    server.register("address", json.dumps(address), references=[of_country.to_dict()])
    schema = Schema(json.dumps(order), "AVRO", [of_country, of_address])
    value = {"to": {"city": "Ulm", "country": "DE"}, "id": 5}
    client = SchemaRegistry(RegistrySettings((server.url,)), FakeClock())
    written = [serialized(server, schema, value, in_header=which) for which in (False, True)]
    latest = client.version("orders-value", "latest")
    of = AvroDecoder(parse_schema(latest.text, latest.references), client)
    assert columns(of, *written) == ([value, value], {})
