"""A daemon whose sink writes values in Avro, with ids of a schema registry."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.testing.registry import RegistryServer
from tests.integration.daemon.rig import eventually
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

_CODE = """
import pyarrow as pa


def orders(table, batch):
    rows = [{"id": each["id"], "note": each["note"]} for each in table.to_pylist()]
    kind = pa.struct([("id", pa.int64()), ("note", pa.string())])
    return pa.table({"value": pa.array(rows, kind)})
"""

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


@pytest.mark.timeout(120)
def test_results_in_avro_are_there_once_for_confluents_deserializer(site: Site) -> None:
    """Rows become values of a registered schema, and one without a place in it is a letter."""
    (site.directory / "writing.py").write_text(_CODE, encoding="utf-8")
    topic, letters = site.broker.create_topic(1), site.broker.create_topic(1)
    with RegistryServer() as registry:
        document = site.document(
            processor={
                "type": "arrow",
                "reducer": "writing:orders",
                "decode": "json",
                "schema": "id BIGINT, note STRING",
            },
            sink={
                "type": "kafka",
                "topic": topic,
                "encode": "avro",
                "writer_schema": {"text": json.dumps(SCHEMA)},
            },
            rejects={"failing": "dead_letter", "topic": letters},
        ) | {"registry": {"url": registry.url}}
        daemon = site.daemon(document).start()
        daemon.wait_event("assignment_complete")
        rows: list[dict[str, Any]] = [{"id": n, "note": f"Tür {n}"} for n in range(20)]
        values = [json.dumps(row).encode() for row in rows]
        site.broker.produce(site.partition(0), *values[:10], b'{"id": null}', *values[10:])
        eventually(lambda: len(committed_records(site.broker.address, topic)) == len(rows))
        with SchemaRegistryClient({"url": registry.url}) as client:
            read = AvroDeserializer(client)
            context = SerializationContext(topic, MessageField.VALUE)
            found = [
                read(each.value(), context)
                for each in committed_records(site.broker.address, topic)
            ]
            assert client.get_latest_version(f"{topic}-value").schema_id == 1
        assert sorted(found, key=lambda row: row["id"]) == rows
        (letter,) = committed_records(site.broker.address, letters)
        assert letter.value() == b'{"id": null}'
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.text()
