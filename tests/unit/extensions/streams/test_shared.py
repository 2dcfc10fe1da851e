"""Shared tables as channels have them: whole in each member, read to the end and followed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import ConfigError, StartError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.streams.runtime.shared import SharedReader, SharedTables
from headrace.streams import Field, Row, StreamsTest, Topology, key
from headrace.testing.broker import InMemoryBroker, InMemorySource
from headrace.testing.records import FakeRecord
from headrace.testing.streams import InMemoryPart, TopicRecord, check_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["inner", "left"]


class Visit(Row):
    country: Field[str | None]


class Country(Row):
    label: Field[str]


class Named(Row):
    user: Field[str]
    label: Field[str | None]


def program(kind: Kind = "left") -> Topology:
    """Return a topology that looks countries of visits up."""
    app = Topology()
    countries = app.shared_table("countries", Country, name="countries")
    named = app.stream("visits", Visit).lookup(
        countries,
        Named,
        name="named",
        on=Visit.country.lower(),
        kind=kind,
        user=key,
        label=Country.label,
    )
    named.to("named")
    return app


COUNTRIES: list[tuple[bytes, bytes | None]] = [
    (b"de", b'{"label":"x"}'),
    (b"de", b'{"label":"Germany"}'),
    (b"fr", b'{"label":"France"}'),
    (b"xx", b'{"label":"nowhere"}'),
    (b"xx", None),
]

VISITS: list[tuple[str, str | None]] = [("a", "DE"), ("b", "xx"), ("c", None), ("d", "Fr")]


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_rows_of_a_channel_are_those_of_the_test_kit_once_the_table_is_read(kind: Kind) -> None:
    """Each row has what the table knows of any expression of it, over a restart as well."""
    plan = program(kind).plan("shop")
    (part,) = plan.channels
    run = InMemoryPart(plan, part)
    run.load("countries", [TopicRecord("countries", *each, 1) for each in COUNTRIES])
    test = StreamsTest(program(kind))
    for name, label in COUNTRIES:
        test.pipe("countries", label, key=name)
    for at, (user, country) in enumerate(VISITS):
        value = json.dumps({"country": country})
        run.run([TopicRecord("visits", user.encode(), value.encode(), at + 1)])
        run.restart()
        test.pipe("visits", value, key=user, time=at + 1)
    wanted = [(each.key, each.value, each.time) for each in test.read("named")]
    found = [
        ((each.key or b"").decode(), json.loads(each.value or b""), each.time)
        for each in run.written["named"]
    ]
    assert found == wanted
    assert not run.rows()


def test_a_topology_with_a_shared_table_is_checked() -> None:
    """The table has its last rows from the beginning, so all cuts give the same."""
    records: list[Any] = [("countries", name, value, 0) for name, value in COUNTRIES]
    records += [("visits", user, {"country": country}, 1) for user, country in VISITS]
    check_topology(program, records, runs=4)


@contextmanager
def reading(broker: InMemoryBroker, failures: list[BaseException]) -> Iterator[SharedTables]:
    """Read the shared tables of the program from a broker, and follow them."""
    plan = program().plan("shop")
    tables = SharedTables(plan, plan.channels[0])
    reader = SharedReader(
        "shop.visits", tables, lambda: InMemorySource(broker), SYSTEM_CLOCK, failures.append
    )
    try:
        reader.load(broker.catalog(), Deadline.after(10))
        yield tables
    finally:
        if reader.is_started:
            assert reader.stop(Deadline.after(10))


def produce(broker: InMemoryBroker, partition: int, *records: tuple[bytes, bytes | None]) -> None:
    """Write countries."""
    made = [FakeRecord(key_=name, value_=value, timestamp_=1) for name, value in records]
    broker.produce(TopicPartition("countries", partition), *made)


def labels(tables: SharedTables) -> dict[bytes, str]:
    """Return the rows of the only table."""
    (table,) = tables.by_place.values()
    return {name: held.row["label"] for name, held in dict(table.state.rows).items()}


def test_a_table_is_read_to_the_end_of_all_partitions_and_followed() -> None:
    """Rows are there when loading returns; changes and deletions come by themselves."""
    broker = InMemoryBroker()
    broker.create_topic("countries", 3)
    produce(broker, 0, *COUNTRIES)
    produce(broker, 2, (b"it", b'{"label":"Italy"}'))
    failures: list[BaseException] = []
    with reading(broker, failures) as tables:
        assert labels(tables) == {b"de": "Germany", b"fr": "France", b"it": "Italy"}
        produce(broker, 1, (b"es", b'{"label":"Spain"}'))
        produce(broker, 2, (b"it", None))
        wanted = {b"de": "Germany", b"fr": "France", b"es": "Spain"}
        assert wait_for(lambda: labels(tables) == wanted, Deadline.after(10))
    assert failures == []


def test_a_record_that_is_no_row_is_left_out_and_logged() -> None:
    """The row of its key stays as it was, and the others are read."""
    broker = InMemoryBroker()
    broker.create_topic("countries")
    produce(broker, 0, (b"de", b'{"label":"x"}'), (b"de", b"{"), (b"fr", b'{"label":"y"}'))
    with capture_logs() as logged, reading(broker, []) as tables:
        assert labels(tables) == {b"de": "x", b"fr": "y"}
    (event,) = [each for each in logged if each["event"] == "shared_record_left_out"]
    assert (event["topic"], event["partition"], event["offset"]) == ("countries", 0, 1)


def test_a_topic_that_does_not_exist_is_refused() -> None:
    """The error names it, and the channel."""
    with (
        pytest.raises(StartError, match=r"topic countries, a shared table of channel shop\.visits"),
        reading(InMemoryBroker(), []),
    ):
        pass


def test_a_shared_table_is_no_side_of_a_join_of_tables() -> None:
    """A join would need the changes of each row in the order of time."""
    app = Topology()
    shared: Any = app.shared_table("countries", Country, name="countries")
    table = app.table("visits", Visit, name="visits")
    with pytest.raises(ConfigError, match=r"a shared_table is for lookups of streams"):
        table.join(shared, Named, name="x", user=key, label=Country.label)
