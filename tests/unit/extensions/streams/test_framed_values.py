"""Streams of values that name their schemas by ids of a registry."""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
from headrace.core.errors import ConfigError, RetryableError, StartError
from headrace.extensions.streams.runtime.build import decoders_of
from headrace.formats.registry import WAITS
from headrace.streams import Field, Row, StreamsTest, Topology, count, key
from headrace.testing.registry import RegistryServer
from tests.unit.formats.avro.generated import framed, written

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "country", "type": ["null", "string"], "default": None},
        {"name": "data", "type": "bytes", "default": ""},
    ],
}


class Order(Row):
    """A row of which the values have more fields."""

    id: Field[int]
    country: Field[str | None]


class Counted(Row):
    """The orders of a country."""

    country: Field[str]
    n: Field[int]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that has the schema of orders, whose id is 1."""
    with RegistryServer() as made:
        made.register("orders-value", json.dumps(ORDER))
        yield made


def counting(codec: str = "avro") -> Topology:
    """Return a topology that counts orders by country, for which they go through a topic."""
    topology = Topology()
    orders = topology.stream("orders", Order, codec=codec)
    counted = orders.group_by(Order.country, name="counts").agg(Counted, country=key, n=count())
    counted.to("counted")
    return topology


def running(server: RegistryServer, topology: Topology, **options: Any) -> StreamsTest:
    """Return a test whose plan has the decoders that a daemon's has."""
    test = StreamsTest(topology, batch=10, **options)
    test.plan = replace(test.plan, decoders=decoders_of(test.plan, {}, registry_of(server)))
    return test


def registry_of(server: RegistryServer) -> RegistryConfig:
    """Return the section of a configuration."""
    return RegistryConfig(url=(server.url,))


def avro(number: int, country: str | None) -> bytes:
    """Return a value with its frame."""
    return framed(written(ORDER, {"id": number, "country": country, "data": b""}), 1)


def counts(test: StreamsTest) -> dict[str, int]:
    """Return how many orders there are of each country."""
    return {name: row["n"] for name, row in test.store("counts").items()}


def test_rows_of_avro_are_counted_by_a_field(server: RegistryServer) -> None:
    """Rows have the fields of their class, and values go through a topic by key as they are."""
    test = running(server, counting())
    for number, country in enumerate(["DE", "FR", "DE"]):
        test.pipe("orders", avro(number, country))
    assert counts(test) == {"DE": 2, "FR": 1}


def test_a_value_that_cannot_be_read_is_poison_and_its_neighbours_are_not(
    server: RegistryServer,
) -> None:
    """The reason is the one that letters of other channels have."""
    test = running(server, counting(), on_poison="drop")
    test.pipe("orders", avro(1, "DE"))
    test.pipe("orders", avro(2, "DE")[:-2])
    test.pipe("orders", b"x")
    assert counts(test) == {"DE": 1}
    first, second = (str(each) for each in test.poison)
    assert "schema id 1: field country" in first
    assert "it has no frame" in second
    assert first.endswith("[DECODER]")


def test_a_registry_that_is_away_is_no_records_fault(server: RegistryServer) -> None:
    """The micro-batch fails as one that waits, and no record is poison."""
    test = running(server, counting(), on_poison="drop")
    server.status = HTTPStatus.SERVICE_UNAVAILABLE
    test.pipe("orders", avro(1, "DE"))
    with pytest.raises(RetryableError, match=WAITS):
        test.run()
    assert test.poison == []


def test_rows_of_json_with_ids_are_read(server: RegistryServer) -> None:
    """The frame is taken off, and fields come by their names."""
    number = server.register("other", '{"type": "object"}', schemaType="JSON")
    test = running(server, counting("json_schema"))
    test.pipe("orders", framed(b'{"id": 1, "country": "DE", "more": [1]}', number))
    assert counts(test) == {"DE": 1}


def test_rows_that_are_not_made_of_the_schema_end_the_start(server: RegistryServer) -> None:
    """The error names each field, and what to change."""

    class Other(Row):
        id: Field[str]
        price: Field[float]

    topology = Topology()
    topology.stream("orders", Other, codec="avro").to("out")
    with pytest.raises(StartError) as raised:
        decoders_of(topology.plan(), {}, registry_of(server))
    said = str(raised.value)
    assert "field price is not in the reader's schema; change the class, or name" in said


def test_a_topology_needs_the_registry_and_the_schema(server: RegistryServer) -> None:
    """Without the section, or without the subject, the start ends and says so."""
    topology = Topology()
    topology.stream("others", Order, codec="avro").to("out")
    plan = topology.plan()
    with pytest.raises(ConfigError, match="has codec 'avro', which needs the section registry"):
        decoders_of(plan, {}, None)
    with pytest.raises(StartError, match="no version latest of subject others-value"):
        decoders_of(plan, {}, registry_of(server))
    named = {"others": ReaderSchemaConfig(subject="orders-value")}
    assert list(decoders_of(plan, named, registry_of(server))) == [0]


def test_values_are_not_written_so() -> None:
    """A sink of a topology refuses the codec."""
    stream = Topology().stream("orders", Order, codec="avro")
    with pytest.raises(ConfigError, match="codec 'avro' is for values that are read"):
        stream.to("out", codec="avro")
