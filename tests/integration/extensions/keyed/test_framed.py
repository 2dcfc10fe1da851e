"""A daemon with state by a field of values in Avro."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from headrace.testing.registry import RegistryServer
from tests.integration.daemon.rig import eventually
from tests.integration.extensions.keyed.test_daemon import rows
from tests.kafka_sinks import committed_records
from tests.registries import AvroProducer

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

_CODE = """
from headrace.keyed import Output


def total(key, state, facts, now):
    for fact in facts:
        state = (state or 0) + fact.value["n"]
    return state, [Output({"customer": key, "total": state})], {}
"""

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "n", "type": "long"}],
}


@pytest.mark.timeout(200)
def test_facts_in_avro_count_once_by_a_field_of_theirs(site: Site) -> None:
    """Each value in Avro is in its customer's state once, and a bad one is a letter."""
    (site.directory / "totals.py").write_text(_CODE, encoding="utf-8")
    output, letters = site.broker.create_topic(1), site.broker.create_topic(1)
    with RegistryServer() as registry, AvroProducer(registry.url, ORDER) as producer:
        values = [producer.value(customer="ab"[n % 2], n=n) for n in range(40)]
        document = site.document(
            processor={
                "type": "keyed",
                "engine": "arrow",
                "reducer": "totals:total",
                "key": "value.customer",
                "value": "avro",
                "reader_schema": {"subject": "orders-value"},
            },
            sink={"type": "kafka", "topic": output},
            rejects={"failing": "dead_letter", "topic": letters},
        ) | {"registry": {"url": registry.url}}
        site.broker.produce(site.partition(0), *values[:20], values[0][:-1])
        site.broker.produce(site.partition(1), *values[20:])
        daemon = site.daemon(document).start()
        sums = {name: sum(range(start, 40, 2)) for start, name in enumerate("ab")}
        last = {"a": 0, "b": 0}

        def arrived() -> bool:
            last.update({each["customer"]: each["total"] for _, each in rows(site, output)})
            return last == sums

        eventually(arrived)
        (letter,) = committed_records(site.broker.address, letters)
        assert letter.value() == values[0][:-1]
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.text()
