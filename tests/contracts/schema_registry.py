"""The contract of every schema registry, as readers and Confluent's producers use it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.formats.errors import UnknownSchemaError, UnknownYetError
from headrace.formats.registry import RegistrySettings, SchemaRegistry
from headrace.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


def record(name: str, *fields: tuple[str, Any]) -> str:
    """Return a schema."""
    made = [{"name": field, "type": kind} for field, kind in fields]
    return json.dumps({"type": "record", "name": name, "fields": made})


class SchemaRegistryContract:
    """Subclasses provide the fixture ``url``."""

    @pytest.fixture
    def producer(self, url: str) -> Iterator[SchemaRegistryClient]:
        """Confluent's client, with which producers register."""
        with SchemaRegistryClient({"url": url}) as client:
            yield client

    @pytest.fixture
    def reader(self, url: str) -> SchemaRegistry:
        """The client under test."""
        return SchemaRegistry(RegistrySettings((url,)), FakeClock())

    @pytest.fixture
    def subject(self) -> str:
        """A subject that there is not yet."""
        return f"orders/{uuid4().hex}-value"

    def test_a_schema_is_read_by_its_id_and_by_its_version(
        self, producer: SchemaRegistryClient, reader: SchemaRegistry, subject: str
    ) -> None:
        """A schema that is registered is found by its id, as a version and as the latest."""
        texts = [
            record("A", ("id", "long")),
            json.dumps(
                {
                    "type": "record",
                    "name": "A",
                    "fields": [
                        {"name": "id", "type": "long"},
                        {"name": "note", "type": "string", "default": ""},
                    ],
                }
            ),
        ]
        first, second = (producer.register_schema(subject, Schema(text, "AVRO")) for text in texts)
        assert first != second
        assert producer.register_schema(subject, Schema(texts[0], "AVRO")) == first
        assert [same(reader.schema(each).text) for each in (first, second)] == list(
            map(same, texts)
        )
        assert reader.schema(first).kind == "AVRO"
        assert reader.version(subject, "1").number == first
        assert reader.version(subject, "latest").number == second

    def test_ids_subjects_and_versions_that_there_are_not_are_told_apart_from_a_fault(
        self, producer: SchemaRegistryClient, reader: SchemaRegistry, subject: str
    ) -> None:
        """Unknown ones are answered by the codes that tell them from a wrong address."""
        with pytest.raises(UnknownSchemaError, match="has no version latest of subject"):
            reader.version(subject, "latest")
        producer.register_schema(subject, Schema(record("A", ("id", "long")), "AVRO"))
        with pytest.raises(UnknownSchemaError, match="has no version 7 of subject"):
            reader.version(subject, "7")
        with pytest.raises(UnknownYetError):
            reader.schema(2_000_000_000)
        with pytest.raises(UnknownSchemaError):
            reader.schema_now(2_000_000_000)
        with pytest.raises(SchemaRegistryError) as raised:
            producer.get_schema(2_000_000_000)
        assert (raised.value.http_status_code, raised.value.error_code) == (404, 40403)

    def test_an_address_that_is_no_path_of_the_api_has_no_code_of_it(self, url: str) -> None:
        """A wrong address makes batches wait, because its 404 has another code."""
        answer = httpx.get(f"{url}/schemas/numbers/1", timeout=30)
        assert answer.status_code == httpx.codes.NOT_FOUND
        assert "40403" not in answer.text

    def test_references_come_with_their_subjects_and_versions(
        self, producer: SchemaRegistryClient, reader: SchemaRegistry, subject: str
    ) -> None:
        """A schema that names another one is read with its text, each after what it names."""
        country = json.dumps(
            {"type": "enum", "name": "Country", "namespace": "geo", "symbols": ["DE"]}
        )
        address = record("geo.Address", ("country", "geo.Country"))
        order = record("Order", ("to", "geo.Address"))
        of_country = SchemaReference("geo.Country", f"{subject}-country", 1)
        of_address = SchemaReference("geo.Address", f"{subject}-address", 1)
        producer.register_schema(of_country.subject or "", Schema(country, "AVRO"))
        producer.register_schema(of_address.subject or "", Schema(address, "AVRO", [of_country]))
        schema = Schema(order, "AVRO", [of_country, of_address])
        number = producer.register_schema(subject, schema)
        found = reader.schema(number)
        assert same(found.text) == same(order)
        assert [same(each) for each in found.references] == [same(country), same(address)]

    def test_the_serializer_of_confluents_registers_what_is_read(
        self, producer: SchemaRegistryClient, reader: SchemaRegistry, subject: str
    ) -> None:
        """The id in the frame of a value is one of the schema that it was written by."""
        text = record("A", ("id", "long"))
        write = AvroSerializer(producer, text, conf={"subject.name.strategy": lambda *_: subject})
        value = write({"id": 5}, SerializationContext("orders", MessageField.VALUE))
        assert isinstance(value, bytes)
        assert value[:1] + value[5:] == b"\0\x0a"
        assert same(reader.schema(int.from_bytes(value[1:5], "big")).text) == same(text)


def same(text: str) -> Any:
    """Return a schema in a form that is the same however it is spelt."""
    return json.loads(text)
