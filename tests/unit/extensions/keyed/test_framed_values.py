"""Values that name their schemas by ids of a registry, in channels by key."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
from headrace.core.errors import RetryableError
from headrace.core.letter_headers import code_of
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.rekey import Rekey, RekeySettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.formats.framing import HEADER
from headrace.formats.json_schema import values_decoder_of
from headrace.formats.registry import WAITS
from headrace.keyed import Output
from headrace.processors.micro_batch_processor import reading_decoder
from headrace.testing.keyed import KeyedTest, Sent
from headrace.testing.registry import RegistryServer
from tests.unit.formats.avro.generated import framed, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.core.decoders import CustomDecoder

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that has the schema of orders, whose id is 1."""
    with RegistryServer() as made:
        made.register("orders-value", json.dumps(ORDER))
        yield made


def avro(server: RegistryServer) -> CustomDecoder:
    """Return the decoder of a channel with value: avro."""
    schema = ReaderSchemaConfig(subject="orders-value")
    made = reading_decoder("value", "avro", schema, RegistryConfig(url=(server.url,)))
    made.load()
    return made


def body(number: int) -> bytes:
    """Return a value in Avro without a frame."""
    return written(ORDER, {"id": number, "tags": {"a": "b"}})


def collect(key: Any, state: Any, facts: Sequence[Any], now: int) -> Any:
    """Put values out as they are."""
    del key, now
    return state, [Output(fact.value) for fact in facts], {}


def outputs(test: KeyedTest) -> list[Any]:
    """Return what the reducer got."""
    return [each.value for each in test.outputs if each.to == "out"]


def test_a_reducer_gets_values_in_avro_as_dictionaries(server: RegistryServer) -> None:
    """Values of several keys are read together, also one whose header names the schema."""
    test = KeyedTest(collect, FoldSettings(outputs=("out",), framed=avro(server)))
    header = ((HEADER, b"\0\0\0\0\1"),)
    test.send(
        Sent("a", framed(body(1), 1), 1),
        Sent("b", None, 2),
        Sent("b", body(2), 3, headers=header),
        Sent("a", framed(body(3), 1), 4),
    )
    found = sorted(outputs(test), key=lambda each: -1 if each is None else each["id"])
    assert found == [None, *({"id": n, "tags": {"a": "b"}} for n in (1, 2, 3))]


def test_a_value_that_cannot_be_read_is_a_letter_and_its_neighbours_are_not(
    server: RegistryServer,
) -> None:
    """The letter has the words that it has without keys, and facts of its key go on."""
    settings = FoldSettings(outputs=("out",), undecodable="dead_letter", framed=avro(server))
    test = KeyedTest(collect, settings)
    header = ((HEADER, b"\0\0\0\0\1"),)
    test.send(
        Sent("a", framed(body(1), 1), 1),
        Sent("a", framed(body(2)[:-1], 1), 2),
        Sent("a", body(3), 3, headers=header),
        Sent("b", b"x", 4),
    )
    assert [each["id"] for each in outputs(test)] == [1, 3]
    said = [(dict(e.headers)["headrace.message"] or b"").decode() for e in test.dead_letters]
    assert "schema id 1: field tags: the value ends too early" in said[0]
    assert "it has no frame" in said[1]
    assert {code_of(each) for each in said} == {"DECODER"}


def test_a_registry_that_is_away_is_no_facts_fault(server: RegistryServer) -> None:
    """The micro-batch fails as one that waits, and no fact is set aside."""
    settings = FoldSettings(outputs=("out",), undecodable="dead_letter", framed=avro(server))
    test = KeyedTest(collect, settings)
    server.status = HTTPStatus.SERVICE_UNAVAILABLE
    with pytest.raises(RetryableError, match=WAITS):
        test.send(Sent("a", framed(body(1), 1), 1))
    server.status = None
    test.send(Sent("a", framed(body(2), 1), 2))
    assert test.dead_letters == []


def test_documents_in_json_with_ids_are_read_as_they_are(server: RegistryServer) -> None:
    """A reducer gets the document, and what is none of its schema's format is a letter."""
    number = server.register("other-value", '{"type": "object"}', schemaType="JSON")
    decoder = values_decoder_of(RegistryConfig(url=(server.url,)))
    decoder.load()
    settings = FoldSettings(outputs=("out",), undecodable="dead_letter", framed=decoder)
    test = KeyedTest(collect, settings)
    test.send(
        Sent("a", framed(b'{"n": [1, null]}', number), 1),
        Sent("a", framed(b"{", number), 2),
        Sent("a", framed(b"{}", 1), 3),
    )
    assert outputs(test) == [{"n": [1, None]}]
    said = [(dict(e.headers)["headrace.message"] or b"").decode() for e in test.dead_letters]
    assert f"schema id {number}: " in said[0]
    assert "schema id 1: it is of type AVRO, not JSON" in said[1]


def test_records_are_written_again_by_a_field_of_avro(server: RegistryServer) -> None:
    """All values are read together, and one that cannot be read is without the key."""
    settings = RekeySettings(
        "value.id", "by-key", "avro", "dead_letter", "letters", framed=avro(server)
    )
    rows = [
        ("t", 0, n, b"k", each, None, None)
        for n, each in enumerate([framed(body(7), 1), b"x", None])
    ]
    names = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    table = pa.table(
        [pa.array(columns.get(each.name, [None] * 3), each.type) for each in SCHEMA], SCHEMA
    )
    made = Rekey(settings)(table)
    assert made.column("key").to_pylist() == [b"7", b"k", b"k"]
    assert made.column("topic").to_pylist() == ["by-key", "letters", "letters"]
    said = dict(map(tuple, ((h["key"], h["value"]) for h in made.column("headers")[1].as_py())))
    assert b"it has no frame" in said["headrace.message"]
