"""A topology in a daemon that reads values in Avro."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from headrace.testing.registry import RegistryServer
from tests.integration.daemon.rig import eventually
from tests.integration.extensions.keyed.test_daemon import rows
from tests.kafka_sinks import committed_records
from tests.registries import AvroProducer

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Site

_CODE = """
from headrace.streams import Field, Row, Topology, count, key, total


class Order(Row):
    customer: Field[str]
    n: Field[int]


class Total(Row):
    customer: Field[str]
    orders: Field[int]
    sum: Field[int]


def totals(orders, output):
    app = Topology()
    grouped = app.stream(orders, Order, codec="avro").group_by(Order.customer, name="totals")
    made = grouped.agg(Total, customer=key, orders=count(), sum=total(Order.n))
    made.updates().to(output)
    return app
"""

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "n", "type": "int"},
    ],
}


@pytest.mark.timeout(200)
def test_a_topology_counts_values_in_avro_once(site: Site) -> None:
    """Rows of Avro go by a field of theirs into exact sums, and a bad value is a letter."""
    (site.directory / "totals_of_avro.py").write_text(_CODE, encoding="utf-8")
    output, letters = site.broker.create_topic(1), site.broker.create_topic(1)
    with RegistryServer() as registry, AvroProducer(registry.url, ORDER) as producer:
        values = [producer.value(customer="ab"[n % 2], n=n) for n in range(40)]
        document = site.document()
        common = document.pop("channels")["main"]
        channel: dict[str, Any] = {
            name: common[name] for name in ("coordinator", "commit_interval")
        }
        channel["rejects"] = {"failing": "dead_letter", "topic": letters}
        channel["processor"] = {"reader_schemas": {site.topic: {"subject": "orders-value"}}}
        document["topologies"] = {
            "shop": {
                "code": "totals_of_avro:totals",
                "group": site.group,
                "options": {"orders": site.topic, "output": output},
                "channel": channel,
            }
        }
        document["registry"] = {"url": registry.url}
        site.broker.produce(site.partition(0), *values[:20], values[0][:-1])
        site.broker.produce(site.partition(1), *values[20:])
        daemon = site.daemon(document).start()
        last: dict[str, tuple[int, int]] = {}

        def arrived() -> bool:
            found = [each for _, each in rows(site, output)]
            last.update({each["customer"]: (each["orders"], each["sum"]) for each in found})
            return last == {name: (20, sum(range(start, 40, 2))) for start, name in enumerate("ab")}

        eventually(arrived)
        (letter,) = committed_records(site.broker.address, letters)
        assert letter.value() == values[0][:-1]
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0, daemon.text()
