"""Rows of windows that are not in memory: when they are read, and how many stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from headrace.extensions.streams.runtime.window_room import WindowRoom
from headrace.streams import Field, Row, Topology, count, hopping, key, tumbling, window_start
from headrace.testing.keyed import MemoryStore
from tests.unit.extensions.streams.test_fold import InMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.extensions.keyed.row import KeyRow, PartitionKey

MINUTE = 60_000


class Click(Row):
    place: Field[str | None]


class Clicks(Row):
    begin: Field[int]
    n: Field[int]


class WatchedStore(MemoryStore):
    """Counts the rows that are read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    @override
    def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        found = super().get_many(keys)
        self.read += sum(each is not None for each in found)
        return found

    @override
    def rows(self, partition: int, first: bytes = b"") -> Iterator[tuple[bytes, KeyRow]]:
        for each in super().rows(partition, first):
            self.read += 1
            yield each


def clicks_by_minute(*, hops: bool = False, emits: str = "updates") -> Topology:
    """Return a topology that counts clicks by key in windows that stay open for an hour."""
    app = Topology()
    windows = hopping("3m", every="1m", grace="1h") if hops else tumbling("1m", grace="1h")
    found = app.stream("clicks", Click).group_by(key, name="clicks").window(windows)
    table = found.agg(Clicks, begin=window_start, n=count())
    (table.final() if emits == "final" else table.updates()).to("counts")
    return app


def filled(topology: Topology, keys: int, minutes: int, cache: int = 64 << 20) -> InMemory:
    """Return a channel with a click of each key in each minute, committed."""
    plan = topology.plan("shop")
    run = InMemory(plan, plan.channels[0], cache=cache)
    run.store = WatchedStore()
    run.restart()
    for minute in range(minutes):
        run.run("clicks", [(b"k%03d" % each, b"{}", minute * MINUTE) for each in range(keys)])
    return run


@pytest.mark.parametrize("hops", [False, True])
def test_a_task_that_starts_reads_the_rows_of_the_keys_that_come(hops: bool) -> None:
    """The store reads the rows of three keys, and not 2,000."""
    run = filled(clicks_by_minute(hops=hops), keys=200, minutes=10)
    assert isinstance(run.store, WatchedStore)
    run.restart()
    run.store.read = 0
    run.run("clicks", [(b"k%03d" % each, b"{}", 9 * MINUTE) for each in range(3)])
    panes = 3 if hops else 1
    # with the time of the operator, and the changed rows, which the test compares
    assert run.store.read <= 3 * panes + 10 + 2 + 3 + 1


def test_a_window_that_is_over_has_all_its_rows_after_a_restart() -> None:
    """The final rows are also those of keys that had no record since."""
    run = filled(clicks_by_minute(emits="final"), keys=50, minutes=2)
    run.restart()
    run.run("clicks", [(b"k000", b"{}", 61 * MINUTE + 1)])
    assert [key for key, _, _ in run.written["counts"]] == [b"k%03d" % each for each in range(50)]
    assert all(b'"n":1' in (value or b"") for _, value, _ in run.written["counts"])
    assert {row[: len(b"clicks/") + 19] for row in run.rows("clicks")} == {
        b"clicks/%019d" % (minute * MINUTE) for minute in (1, 61)
    }


@pytest.mark.parametrize(("cache", "read"), [(30 * 300, 20), (64 << 20, 0)])
def test_rows_above_the_room_are_read_again_when_they_are_needed(cache: int, read: int) -> None:
    """A key's row is read again where there is room for 30 of 200 rows, and the count goes on."""
    run = filled(clicks_by_minute(), keys=20, minutes=10, cache=cache)
    assert isinstance(run.store, WatchedStore)
    run.written.clear()
    run.store.read = 0
    run.run("clicks", [(b"k%03d" % each, b"{}", 3 * MINUTE) for each in range(20)])
    changed = 20  # which the channel of the test looks for after each micro-batch
    assert run.store.read - changed == read
    assert [value for _, value, _ in run.written["counts"]] == [b'{"begin":180000,"n":2}'] * 20


@given(most=st.integers(0, 10_000), sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=8))
def test_stores_come_to_fit_the_room(most: int, sizes: list[int]) -> None:
    """Each gives up half of what it may keep when it is told of too much, as stores of panes do."""
    room, stores = WindowRoom(most), [frozenset([number]) for number in range(len(sizes))]
    for _ in range(20):
        for at, store in enumerate(stores):
            kept = room.share(store, sizes[at])
            if kept < sizes[at]:
                sizes[at] = kept // 2
                room.share(store, sizes[at])
    assert sum(sizes) <= most


def test_a_store_that_is_gone_leaves_its_room() -> None:
    """A task that went to another member leaves its share to the others."""

    class Store:
        """Any store."""

    room, gone, stays = WindowRoom(100), Store(), Store()
    assert room.share(gone, 100) == 100
    assert room.share(stays, 100) == 50
    del gone
    assert room.share(stays, 100) == 100
