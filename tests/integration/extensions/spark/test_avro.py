"""Values in Avro by Confluent's own serializer: decoded in this process, and in Spark's workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.config import MicroBatchRejects, load
from headrace.core.errors import JobFailedError, StartError
from headrace.core.records import TopicPartition
from headrace.extensions.arrow.reducer import dry_run as dry_run_inline
from headrace.extensions.spark.dryrun import dry_run
from headrace.formats.errors import RegistryError
from headrace.formats.framing import HEADER
from headrace.formats.registry import WAITS
from headrace.processors.micro_batch_processor import decode
from headrace.testing import FakeRecord, records_table
from headrace.testing.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.core.tables import Decode
    from headrace.extensions.spark.runtime import SparkRuntime

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "id", "type": "long"},
        {
            "name": "at",
            "type": {"type": "long", "logicalType": "timestamp-millis"},
            "default": 0,
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


class Producer:
    """Serializes orders by one schema, and registers it, as a producer of Confluent's does."""

    def __init__(self, registry: RegistryServer, schema: Any) -> None:
        client = SchemaRegistryClient({"url": registry.url})
        self._write = AvroSerializer(client, json.dumps(schema))

    def value(self, **fields: Any) -> bytes:
        """Return the value of an order."""
        written = self._write(fields, SerializationContext("orders", MessageField.VALUE))
        assert isinstance(written, bytes)
        return written


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


def decoding(folder: Path, registry: RegistryServer, kind: str) -> Decode:
    """Return how a channel of this type decodes, as its start finds it."""
    reducer = "reducer: 'a:b'" if kind == "arrow" else "sql: SELECT * FROM batch"
    file = folder / "headrace.yaml"
    file.write_text(
        f"registry: {{url: '{registry.url}'}}\nchannels:\n"
        f"  c: {{group: a, topics: [orders], sink: noop, processor: {{type: {kind}, {reducer}, "
        "decode: avro, reader_schema: {subject: orders-value}}}\n"
    )
    config = load(file)
    chosen: Any = config.channels["c"].processor
    return decode(chosen, MicroBatchRejects(undecodable="skip"), config.registry)


def test_values_of_two_versions_are_decoded_alike_in_workers_and_without_spark(
    tmp_path: Path, registry: RegistryServer, spark_runtime: SparkRuntime
) -> None:
    """Old and new values come out in the latest columns, and what is damaged is left out."""
    old, new = Producer(registry, OLD), Producer(registry, NEW)
    first = old.value(id=1)
    values = [first, None, new.value(id=2, note="Tür", at=0, tags=["a", "b"]), first[:3], first]
    table = records_table(values)
    inline = dry_run_inline(lambda rows, _: rows, table, decoding(tmp_path, registry, "arrow"))
    spark = dry_run(
        spark_runtime.session, lambda df, _: df, table, decoding(tmp_path, registry, "spark")
    )
    assert inline.rows is not None
    assert spark.rows is not None
    assert inline.skipped == spark.skipped == {TopicPartition("events", 0): [3]}
    found = inline.rows.to_pylist()
    assert found == spark.rows.to_pylist()
    assert [(row["id"], row["note"], row["tags"]) for row in found] == [
        (1, None, []),
        (None, None, None),
        (2, "Tür", ["a", "b"]),
        (1, None, []),
    ]


def test_no_record_is_blamed_while_the_registry_is_away(
    tmp_path: Path, registry: RegistryServer, spark_runtime: SparkRuntime
) -> None:
    """A batch with an id that is not known fails as a whole, though bad records are skipped."""
    table = records_table([Producer(registry, NEW).value(id=2, note=None, at=0, tags=[])])
    inline = decoding(tmp_path, registry, "arrow")
    spark = decoding(tmp_path, registry, "spark")
    registry.stop()
    with pytest.raises(RegistryError, match=WAITS):
        dry_run_inline(lambda rows, _: rows, table, inline)
    with pytest.raises(JobFailedError, match=WAITS):
        dry_run(spark_runtime.session, lambda df, _: df, table, spark)


def test_an_id_that_is_unknown_for_the_first_time_is_no_records_fault(
    tmp_path: Path, registry: RegistryServer, spark_runtime: SparkRuntime
) -> None:
    """A batch of workers waits for the second answer too, and goes no way of bad records."""
    value = Producer(registry, NEW).value(id=2, note=None, at=0, tags=[])
    table = records_table([b"\0\0\0\x03\xe7" + value[5:]])
    with pytest.raises(JobFailedError, match=f"{WAITS} to know schema id 999"):
        dry_run(
            spark_runtime.session, lambda df, _: df, table, decoding(tmp_path, registry, "spark")
        )


def test_values_whose_headers_name_their_schemas_are_decoded_in_workers(
    tmp_path: Path, registry: RegistryServer, spark_runtime: SparkRuntime
) -> None:
    """Workers of Spark are given the headers, as the decoder in this process is."""
    framed = Producer(registry, OLD).value(id=7)
    headers = [(HEADER, b"\1" + UUID(registry.guid(1)).bytes)]
    table = records_table([FakeRecord(value_=framed[5:], headers_=headers), framed])
    inline = dry_run_inline(lambda rows, _: rows, table, decoding(tmp_path, registry, "arrow"))
    spark = dry_run(
        spark_runtime.session, lambda df, _: df, table, decoding(tmp_path, registry, "spark")
    )
    for found in (inline.rows, spark.rows):
        assert found is not None
        assert [row["id"] for row in found.to_pylist()] == [7, 7]


def test_a_start_without_the_readers_schema_says_why(
    tmp_path: Path, registry: RegistryServer
) -> None:
    """A subject that is not registered, and a registry that is away, are errors of the start."""
    with pytest.raises(StartError, match="has no version latest of subject orders-value"):
        decoding(tmp_path, registry, "arrow")
    registry.stop()
    with pytest.raises(StartError, match=WAITS):
        decoding(tmp_path, registry, "arrow")
