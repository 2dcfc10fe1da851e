"""A range that is processed again: its output is replaced, or added to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from tests.integration.daemon.test_offsets import Operator, quiet, read_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.daemon.rig import Site

__all__ = ["quiet"]

_REDUCER = """
def sums(table, batch):
    grouped = table.group_by("partition").aggregate([("offset", "count"), ("offset", "sum")])
    return grouped.rename_columns(["partition", "records", "total"])
"""

_TABLE = "CREATE TABLE sums (partition INTEGER, records BIGINT, total BIGINT, headrace_origin TEXT)"

#: Records of a partition in each of the two runs.
EACH = 20


class Channel:
    """A channel whose rows are sums of micro-batches, and what its table has."""

    def __init__(self, site: Site, sink: dict[str, Any], rows: Callable[[], list[Any]]) -> None:
        (site.directory / "reducers.py").write_text(_REDUCER, encoding="utf-8")
        self._site = site
        self._document = site.document(
            processor={"type": "arrow", "reducer": "reducers:sums"}, sink={**sink, "origin": True}
        )
        self.operator = Operator(site, self._document)
        self._rows = rows

    def read(self, records: int = 0) -> None:
        """Produce so many records for each partition, and have a daemon read what is there."""
        for number in (0, 1) if records else ():
            self._site.broker.produce(self._site.partition(number), *[b"x"] * records)
        read_up(self._site, self._document)

    def sums(self) -> list[tuple[int, int, int]]:
        """Return each partition's number of records and sum of offsets, over all rows."""
        rows = self._rows()
        return [
            (
                number,
                sum(row["records"] for row in rows if row["partition"] == number),
                sum(row["total"] for row in rows if row["partition"] == number),
            )
            for number in (0, 1)
        ]


def _delta(site: Site) -> Channel:
    table = site.directory / "table"
    sink = {"type": "delta", "path": str(table)}
    return Channel(site, sink, lambda: DeltaTable(table).to_pyarrow_table().to_pylist())


def _sql(site: Site) -> Channel:
    url = f"sqlite:///{site.directory / 'base.db'}"

    def run(statement: str) -> list[Any]:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            rows = [dict(row) for row in result.mappings()] if result.returns_rows else []
        engine.dispose()
        return rows

    run(_TABLE)
    sink = {"type": "sql", "url": url, "table": "sums"}
    return Channel(site, sink, lambda: run("SELECT * FROM sums"))


@pytest.fixture(params=[_delta, pytest.param(_sql, marks=pytest.mark.slow)])
def channel(request: pytest.FixtureRequest, site: Site) -> Channel:
    """A channel that read all records of two runs."""
    channel: Channel = request.param(site)
    channel.read(EACH)
    channel.read(EACH)
    return channel


def sums_to(*ends: int) -> list[tuple[int, int, int]]:
    """Return the sums of each partition's records before an offset."""
    return [(number, end, sum(range(end))) for number, end in enumerate(ends)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_range_is_replaced_or_added_to(channel: Channel, site: Site) -> None:
    """A reset requires a choice: replace restores all as it was, append adds the range again."""
    everything = sums_to(2 * EACH, 2 * EACH)
    assert channel.sums() == everything
    reset = ["reset", "--to", f"offset:{EACH}"]
    operator = channel.operator
    operator.call(*reset, code=2)
    assert "--replay append keeps it (rows are appended again" in operator.errors
    replace = [*reset, "--replay", "replace"]
    plan = json.loads(operator.call(*replace, "--dry-run", "--json"))
    assert (plan["refused"], plan["replay"]) == (None, "replace")
    assert plan["rows_removed"] > 0
    assert channel.sums() == everything

    assert "are removed from the sink" in operator.call(*replace)
    assert channel.sums() == sums_to(EACH, EACH)
    assert site.offsets() == [EACH, EACH]
    channel.read()
    assert channel.sums() == everything

    operator.call(*reset, "--replay", "append")
    assert channel.sums() == everything
    channel.read()
    assert channel.sums() == [
        (number, records + EACH, total + sum(range(EACH, 2 * EACH)))
        for number, records, total in everything
    ]

    operator.call("reset", "--to", "earliest", "--replay", "replace")
    assert channel.sums() == sums_to(0, 0)
    channel.read()
    assert channel.sums() == everything


@pytest.mark.timeout(300)
def test_a_replaced_range_begins_where_its_output_does(channel: Channel, site: Site) -> None:
    """Within a micro-batch the plan goes back to where that begins, for all its partitions."""
    operator = channel.operator
    replace = ["reset", "--to", f"offset:{EACH + 5}", "--replay", "replace"]
    plan = json.loads(operator.call(*replace, "--json"))
    ends = [each["new_offset"] for each in plan["partitions"]]
    assert all(EACH <= end <= EACH + 5 for end in ends)
    assert any("within a micro-batch" in str(each["notes"]) for each in plan["partitions"])
    assert site.offsets() == ends
    assert channel.sums() == sums_to(*ends)
    channel.read()
    assert channel.sums() == sums_to(2 * EACH, 2 * EACH)
