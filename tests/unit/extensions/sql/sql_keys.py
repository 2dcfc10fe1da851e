"""Keys that a database and Arrow do not compare alike, and what an upsert leaves of them."""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from headrace.core.errors import RowsRefusedError
from headrace.sinks.micro_batch import MicroBatch
from tests.unit.extensions.sql.sql_tables import share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.sql.sink import SqlSink

_TEXTS = ["A", "a", "B", "b", "ab", "AB", "aB", "a ", "ab ", "b ", "é", "É", ""]

#: By name: Arrow's type, and values of which some may be one for a database.
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), _TEXTS),
    "integer": (pa.int64(), [1, 2, 3]),
    "decimal": (pa.decimal128(6, 3), [Decimal(n) / 1000 for n in (1000, 1001, 1004, 1500, 2000)]),
    "float": (pa.float64(), [0.0, -0.0, 1.0, 1.4, 1.6, 2.0]),
    "moment": (pa.timestamp("us", tz="UTC"), [0, 400_000, 600_000, 1_000_000]),
}

#: A result's keys, each once for Arrow, for a few results.
Results = list[list[Any]]


def results_of(name: str) -> st.SearchStrategy[Results]:
    """Draw the keys of a few results."""
    of_one = st.lists(st.sampled_from(KEYS[name][1]), min_size=1, max_size=5, unique_by=repr)
    return st.lists(of_one, min_size=1, max_size=4)


def commit_all(sink: SqlSink, name: str, results: Results) -> list[dict[str, Any]]:
    """Commit results in one transaction; return their rows in the log's order.

    A result that the sink refuses, as Arrow has two of its keys for one, is left out.
    """
    numbers = iter(range(1000))
    staged: list[Any] = []
    rows: list[dict[str, Any]] = []
    for keys in results:
        own = [{"k": key, "n": next(numbers)} for key in keys]
        kinds = pa.schema([("k", KEYS[name][0]), ("n", pa.int64())])
        table = pa.Table.from_pylist(own, kinds)
        try:
            staged.append(sink.stage(MicroBatch("one", "c", ()), table))
        except RowsRefusedError:
            continue
        rows += table.to_pylist()
    sink.commit_all(staged, [share(0, 0, 1)])
    return rows


def upsert_one_by_one(
    run: Callable[[str, Sequence[Any]], object],
    rows: list[dict[str, Any]],
    mark: str,
    update: str = "ON CONFLICT (k) DO UPDATE SET n = excluded.n",
) -> None:
    """Do the same, row by row and without the sink, in the table ``expected``."""
    statement = f"INSERT INTO expected (k, n) VALUES ({mark}, {mark}) {update}"
    deque((run(statement, [row["k"], row["n"]]) for row in rows), maxlen=0)
