"""Daemons that decode Avro from a topic, with a schema registry that is there or away."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.core.records import TopicPartition
from headrace.formats.registry import WAITS
from headrace.testing.registry import RegistryServer
from tests.integration.daemon.rig import eventually, wait_at_work
from tests.programs import run_program
from tests.registries import AvroProducer, RegistryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.integration.daemon.rig import Site

_CODE = """
def orders(table, batch):
    return table.drop_columns(["_kafka"])
"""


def order(*fields: tuple[Any, ...]) -> dict[str, Any]:
    """Return a schema; each field is a name, a type, and a default where there is one."""
    made = [{"name": n, "type": t, **({"default": d[0]} if d else {})} for n, t, *d in fields]
    return {"type": "record", "name": "Order", "fields": made}


READER = order(("id", "long"), ("note", "string", "none"), ("price", "double", 0.5))
OTHER = order(("id", "int"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    """A registry that has the reader's schema."""
    with RegistryProcess(tmp_path) as made, AvroProducer(made.url, READER) as producer:
        producer.value(id=0, note="", price=0.0)
        yield made


class Orders:
    """A channel of two partitions of orders into a table, with a topic for its letters."""

    def __init__(self, site: Site, registry: dict[str, Any]) -> None:
        (site.directory / "orders.py").write_text(_CODE, encoding="utf-8")
        self.site = site
        self.letters = TopicPartition(site.broker.create_topic(1), 0)
        self._table = site.directory / "table"
        self.document = site.document(
            processor={
                "type": "arrow",
                "reducer": "orders:orders",
                "decode": "avro",
                "reader_schema": {"subject": "orders-value", "version": 1},
            },
            rejects={"undecodable": "dead_letter", "topic": self.letters.topic},
            sink={"type": "delta", "path": str(self._table)},
        ) | {"registry": registry, "admin": {"enabled": True, "port": 0}}
        self.daemon = site.daemon(self.document).start()
        self.daemon.wait_event("assignment_complete")

    @property
    def file(self) -> Path:
        """Return the daemon's configuration."""
        return self.daemon.directory / f"{self.daemon.name}.yaml"

    def produce(self, partition: int, *values: bytes) -> None:
        """Write records to a partition."""
        self.site.broker.produce(self.site.partition(partition), *values)

    def rows(self) -> list[dict[str, Any]]:
        """Return what is in the table, by ids."""
        if not (self._table / "_delta_log").exists():
            return []
        return sorted(DeltaTable(self._table).to_pyarrow_table().to_pylist(), key=lambda r: r["id"])

    def ids(self) -> list[int]:
        """Return the ids that are in the table."""
        return [row["id"] for row in self.rows()]

    def readiness(self) -> str:
        """Return what the command says."""
        command = [sys.executable, "-m", "headrace", "health", "--ready", "-c", str(self.file)]
        done = run_program(command)
        return (done.stdout + done.stderr).strip()

    def reload(self, registry: dict[str, Any]) -> None:
        """Write another section, and have the file read."""
        self.document["registry"] = registry
        other = self.file.with_suffix(".new")
        other.write_text(json.dumps(self.document), encoding="utf-8")
        other.replace(self.file)
        self.daemon.signal(signal.SIGHUP)

    def count(self, event: str) -> int:
        """Return how often an event was logged."""
        return sum(each["event"] == event for each in self.daemon.events())

    def ends(self) -> None:
        """Stop the daemon, and assert that it did in order and blamed no record."""
        self.daemon.signal(signal.SIGTERM)
        assert self.daemon.wait() == 0, self.daemon.text()
        assert self.site.broker.end(self.letters) == 0


class Load(threading.Thread):
    """Writes values of a partition each until they are over, some at a time."""

    def __init__(self, orders: Orders, pause: float, *values: Sequence[bytes]) -> None:
        super().__init__(name="load")
        self._orders = orders
        self._pause = pause
        self._values = [list(each) for each in values]
        self._ended = threading.Event()

    def run(self) -> None:
        """Write."""
        while any(self._values) and not self._ended.wait(self._pause):
            for partition, values in enumerate(self._values):
                self._orders.produce(partition, *values[:50])
                del values[:50]


@pytest.mark.timeout(300)
def test_a_registry_that_is_killed_under_load_costs_nothing(
    site: Site, registry: RegistryProcess
) -> None:
    """Batches of a new schema wait and say so, known schemas go on, and each row is there once."""
    with AvroProducer(registry.url, READER) as old, AvroProducer(registry.url, OTHER) as new:
        known = [old.value(id=n, note="x", price=1.0) for n in range(1000)]
        fresh = [new.value(id=n) for n in range(1000, 2000)]
    orders = Orders(site, {"url": registry.url, "timeout": "2s"})
    orders.produce(1, *known[:100])
    eventually(lambda: len(orders.ids()) == 100)
    eventually(lambda: orders.readiness() == "ready")
    registry.kill()
    load = Load(orders, 0.05, fresh, known[100:])
    load.start()
    eventually(lambda: WAITS in orders.readiness())
    load.join(60)
    eventually(lambda: orders.ids() == list(range(1000)))
    assert registry.url in orders.readiness()
    registry.start()
    eventually(lambda: len(orders.ids()) >= 2000)
    assert orders.ids() == list(range(2000))
    eventually(lambda: orders.readiness() == "ready")
    orders.ends()
    assert orders.ids() == list(range(2000))


@pytest.mark.timeout(300)
def test_writers_change_while_a_channel_runs(site: Site, registry: RegistryProcess) -> None:
    """Promotions, defaults and new fields of writers end in the columns of the start."""
    orders = Orders(site, {"url": registry.url})
    promoted = order(("price", "float"), ("id", "int"))
    longer = order(
        ("id", "long"), ("more", {"type": "array", "items": "string"}), ("note", "string")
    )
    with (
        AvroProducer(registry.url, READER) as first,
        AvroProducer(registry.url, promoted) as second,
        AvroProducer(registry.url, longer) as third,
    ):
        orders.produce(0, first.value(id=1, note="a", price=1.5))
        eventually(lambda: orders.ids() == [1])
        orders.produce(0, second.value(id=2, price=2.5), first.value(id=3, note="b", price=3.5))
        orders.produce(1, third.value(id=4, note="c", more=["x", "y"]))
        eventually(lambda: orders.ids() == [1, 2, 3, 4])
    assert [(row["note"], row["price"]) for row in orders.rows()] == [
        ("a", 1.5),
        ("none", 2.5),
        ("b", 3.5),
        ("c", 0.5),
    ]
    assert set(orders.rows()[0]) == {"id", "note", "price"}
    orders.ends()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_record_of_an_unknown_schema_is_a_letter(site: Site, registry: RegistryProcess) -> None:
    """The batch waits for half a minute, and then the letter names the id; the others are rows."""
    with AvroProducer(registry.url, READER) as producer:
        good = [producer.value(id=n, note="", price=0.0) for n in range(4)]
    orders = Orders(site, {"url": registry.url})
    unknown = b"\0" + (999).to_bytes(4, "big") + good[0][5:]
    orders.produce(0, good[0], unknown, good[1])
    eventually(lambda: f"{WAITS} to know schema id 999" in orders.readiness())
    assert orders.site.broker.end(orders.letters) == 0
    eventually(lambda: orders.site.broker.end(orders.letters) == 1)
    (letter,) = orders.site.broker.read(orders.letters, 1)
    assert letter.value() == unknown
    assert "schema id 999" in str(dict(letter.headers() or []))
    eventually(lambda: orders.ids() == [0, 1])
    orders.produce(0, good[2], good[3])
    eventually(lambda: orders.ids() == [0, 1, 2, 3])
    eventually(lambda: orders.readiness() == "ready")


@pytest.mark.timeout(300)
def test_a_reload_goes_to_another_registry_and_another_login(
    site: Site, registry: RegistryProcess
) -> None:
    """A registry that refuses the login changes nothing; with the right one its ids are known."""
    with RegistryServer() as other:
        other.register("more", json.dumps("long"))
        with AvroProducer(other.url, READER) as producer:
            value = producer.value(id=7, note="", price=0.0)
        assert value[:5] == b"\0\0\0\0\x02"
        other.login = "Basic bWU6cmlnaHQ="  # me:right
        orders = Orders(site, {"url": registry.url})
        orders.reload({"url": other.url, "username": "me", "password": "wrong"})
        pending = orders.daemon.wait_event("config_pending")
        assert "401" in pending["reason"]
        with AvroProducer(registry.url, OTHER) as former:
            orders.produce(1, former.value(id=1))
        eventually(lambda: orders.ids() == [1])
        orders.reload({"url": other.url, "username": "me", "password": "right"})
        orders.daemon.wait_event("clients_reconnected")
        orders.produce(0, value)
        eventually(lambda: orders.ids() == [1, 7])
        orders.ends()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tour_of_a_registry(
    site: Site, registry: RegistryProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed for a minute under load that has new schemas, it costs no record and repeats none."""
    count = 30_000
    with AvroProducer(registry.url, READER) as old, AvroProducer(registry.url, OTHER) as new:
        known = [old.value(id=n, note="x", price=1.0) for n in range(count)]
        fresh = [new.value(id=n) for n in range(count, 2 * count)]
    orders = Orders(site, {"url": registry.url, "timeout": "2s"})
    # a minute and more of load: 50 records a partition, ten times a second
    load = Load(orders, 0.1, fresh[100:], known[100:])
    orders.produce(1, *known[:100])
    eventually(lambda: len(orders.ids()) == 100)
    registry.kill()
    orders.produce(0, *fresh[:100])
    load.start()
    load.join(60)
    waited = orders.readiness()
    during = len(orders.ids())
    registry.start()
    load.join(60)
    # the next try is up to half a minute away
    assert wait_at_work(lambda: len(orders.ids()) >= 2 * count)
    found = Counter(orders.ids())
    twice = sum(number - 1 for number in found.values())
    lost = 2 * count - len(found)
    letters = site.broker.end(orders.letters)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what it is for
            f"\nregistry killed for 60 s: {2 * count:,} records, {during:,} rows meanwhile, "
            f"{lost} lost, {twice} twice, {letters} letters; not ready: {waited}"
        )
    assert (lost, twice, letters) == (0, 0, 0)
    assert WAITS in waited
    orders.ends()
