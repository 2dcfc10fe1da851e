"""Aggregates of drawn events, merged micro-batch by micro-batch, and all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from headrace.sinks.by_key import Merging, WriteMode
from headrace.sinks.micro_batch import MicroBatch
from tests.unit.extensions.sql.sql_tables import share

if TYPE_CHECKING:
    from collections.abc import Sequence


OPTIONS: dict[str, Any] = {
    "mode": WriteMode.MERGE,
    "key": ["shop", "minute"],
    "merge": {
        "events": Merging.SUM,
        "amount": Merging.SUM,
        "first_at": Merging.MIN,
        "last_at": Merging.MAX,
        "name": Merging.LAST,
    },
}

#: The table, in words of both databases.
CREATE = (
    "CREATE TABLE counts (shop VARCHAR(9), minute BIGINT, events BIGINT, amount BIGINT, "
    "first_at BIGINT, last_at BIGINT, name VARCHAR(9), PRIMARY KEY (shop, minute))"
)
READ = "SELECT * FROM counts ORDER BY shop, minute"


class Event(NamedTuple):
    """Something that the reducer counts."""

    shop: str
    at: int
    amount: int | None
    name: str | None


_EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from("abc"),
        st.integers(0, 300),
        st.none() | st.integers(-9, 9),
        st.none() | st.sampled_from("xyz"),
    ),
    max_size=12,
)

#: Micro-batches of some commits; each has the events of one micro-batch after the other.
COMMITS = st.lists(st.lists(_EVENTS, min_size=1, max_size=3), min_size=1, max_size=5)


def reduced(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Return the rows of a count by minute, in the order of their keys."""
    found: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        found.setdefault((event.shop, event.at // 60), []).append(event)
    return [
        (
            *key,
            len(own),
            sum(amounts) if (amounts := [e.amount for e in own if e.amount is not None]) else None,
            min(e.at for e in own),
            max(e.at for e in own),
            own[-1].name,
        )
        for key, own in sorted(found.items())
    ]


def staged(sink: Any, events: Sequence[Event]) -> Any:
    """Return the aggregates of a micro-batch as a sink of any kind has staged them."""
    names, text = ["shop", "minute", *OPTIONS["merge"]], {"shop", "name"}
    kinds = pa.schema([(n, pa.string() if n in text else pa.int64()) for n in names])
    rows = [dict(zip(names, row, strict=True)) for row in reduced(events)]
    return sink.stage(MicroBatch("one", "c", ()), pa.Table.from_pylist(rows, kinds))


def commit(sink: Any, commits: Sequence[Sequence[Sequence[Event]]]) -> None:
    """Commit the aggregates of each micro-batch, several of them in one transaction."""
    for number, micro_batches in enumerate(commits):
        results = [staged(sink, events) for events in micro_batches]
        sink.commit_all(results, [share(0, number, number + 1)])
