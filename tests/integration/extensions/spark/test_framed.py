"""Values in Protobuf and JSON Schema by Confluent's serializers, in this process and in workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.config import MicroBatchRejects, load
from headrace.core.records import TopicPartition
from headrace.extensions.arrow.reducer import dry_run as dry_run_inline
from headrace.extensions.spark.dryrun import dry_run
from headrace.processors.micro_batch_processor import decode
from headrace.testing import records_table
from headrace.testing.registry import RegistryServer
from tests.unit.formats.protobuf.messages import Producer, orders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.core.tables import Decode
    from headrace.extensions.spark.runtime import SparkRuntime

ORDER = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry that answers."""
    with RegistryServer() as made:
        yield made


def decoding(folder: Path, registry: RegistryServer, kind: str, rest: str) -> Decode:
    """Return how a channel of this type decodes, as its start finds it."""
    reducer = "reducer: 'a:b'" if kind == "arrow" else "sql: SELECT * FROM batch"
    file = folder / "headrace.yaml"
    file.write_text(
        f"registry: {{url: '{registry.url}'}}\nchannels:\n"
        f"  c: {{group: a, topics: [orders], sink: noop, processor: {{type: {kind}, {reducer}, "
        f"{rest}}}}}\n"
    )
    config = load(file)
    chosen: Any = config.channels["c"].processor
    return decode(chosen, MicroBatchRejects(undecodable="skip"), config.registry)


def as_json(registry: RegistryServer, **fields: Any) -> bytes:
    """Return an order in JSON as a producer of Confluent's writes it."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        write = JSONSerializer(Schema(json.dumps(ORDER), "JSON"), client)
        made = write(fields, SerializationContext("orders", MessageField.VALUE))
    assert isinstance(made, bytes)
    return made


@pytest.mark.parametrize("name", ["protobuf", "json_schema"])
def test_values_are_decoded_alike_in_workers_and_without_spark(
    tmp_path: Path, registry: RegistryServer, spark_runtime: SparkRuntime, name: str
) -> None:
    """Good values and tombstones come out in the same rows, and what is damaged is left out."""
    if name == "protobuf":
        write = Producer(registry, orders())
        first, second = write.value(id=1, tags=["a"]), write.value(id=2, to={"street": "Am Wehr"})
        rest = "decode: protobuf, reader_schema: {subject: orders-value, message: shop.Order}"
    else:
        first, second = as_json(registry, id=1), as_json(registry, id=2)
        rest = "decode: json_schema, schema: 'id BIGINT, note STRING'"
    table = records_table([first, None, first[:3], second, first])
    inline = dry_run_inline(
        lambda rows, _: rows, table, decoding(tmp_path, registry, "arrow", rest)
    )
    spark = dry_run(
        spark_runtime.session, lambda df, _: df, table, decoding(tmp_path, registry, "spark", rest)
    )
    assert inline.rows is not None
    assert spark.rows is not None
    assert inline.skipped == spark.skipped == {TopicPartition("events", 0): [2]}
    found = inline.rows.to_pylist()
    assert found == spark.rows.to_pylist()
    assert [row["id"] for row in found] == [1, None, 2, 1]
