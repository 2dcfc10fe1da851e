"""The conservation oracle: what was acknowledged against what is stored."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.chaos import delta, keyed
from benchmarks.chaos.world import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stored:
    """One record as a sink has it, in the order of storing.

    ``at`` is when it was stored, in seconds since the epoch, 0 where the sink does not know.
    """

    number: int
    partition: str
    offset: int
    member: str
    epoch: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Conservation:
    """What became of the acknowledged records in one sink.

    ``lost`` are missing; ``unreadable`` are missing as well, but where the broker lets nobody read
    the group's offset, so that they were not read. ``duplicated`` counts occurrences beyond the
    first; ``disordered`` counts records stored after one with a higher offset, duplicates left
    out. Of ``claims`` partitions, ``moved`` were written by more than one member; ``moves`` counts
    the changes.
    """

    acknowledged: int
    stored: int
    lost: int
    duplicated: int
    disordered: int
    claims: int
    moved: int
    moves: int
    unreadable: int = 0


def acknowledged(path: Path) -> dict[int, int]:
    """Return the offsets of the acknowledged records by number, from a producer's file."""
    with path.open(encoding="utf-8") as file:
        # a line that is not whole yet is read the next time
        lines = (line.split() for line in file if line.endswith("\n"))
        return {int(number): int(offset) for number, offset in lines}


def stored(directory: Path) -> Iterator[Stored]:
    """Yield what one sink has, partition by partition."""
    if delta.is_table(directory):
        yield from _in_table(directory)
    if keyed.is_counted(directory):
        yield from _in_topic(directory)
    for path in sorted(directory.glob("*.sqlite")):
        database = sqlite3.connect(path)
        try:
            query = "SELECT id, at_offset, member, epoch, at FROM stored ORDER BY rowid"
            for number, offset, member, epoch, at in database.execute(query):
                yield Stored(number, path.stem, offset, member, epoch, at)
        finally:
            database.close()


def _in_table(directory: Path) -> Iterator[Stored]:
    """Yield a table's rows by offset: its files have no order."""
    for partition, offset, number, member in sorted(delta.rows(directory)):
        yield Stored(number, partition, offset, member, epoch=0)


def _in_topic(directory: Path) -> Iterator[Stored]:
    """Yield outputs by offset: a transaction has them key by key."""
    for partition, offset, number, member in sorted(keyed.rows(directory)):
        yield Stored(number, f"{TOPIC}-{partition}", offset, member, epoch=0)


def reached(directory: Path) -> dict[str, int]:
    """Return the highest offset that one sink has of each partition."""
    highest: dict[str, int] = {}
    if delta.is_table(directory) or keyed.is_counted(directory):
        return {each.partition: each.offset for each in stored(directory)}
    for path in directory.glob("*.sqlite"):
        database = sqlite3.connect(path)
        try:
            row = database.execute("SELECT max(at_offset) FROM stored").fetchone()
        except sqlite3.OperationalError:
            continue  # a member is just making it
        finally:
            database.close()
        if row[0] is not None:
            highest[path.stem] = row[0]
    return highest


def compare(
    sent: Mapping[int, int],
    found: Iterable[Stored],
    waits: Callable[[int], bool] = lambda _: False,
) -> Conservation:
    """Hold what is stored against what was acknowledged.

    A record whose acknowledgement got lost may be there or not. ``waits`` says of a record's
    number whether it is in a partition that cannot be begun with.
    """
    seen: Counter[int] = Counter()
    highest: dict[str, int] = {}
    writers: dict[str, list[str]] = {}
    disordered = 0
    for each in found:
        seen[each.number] += 1
        if seen[each.number] == 1:
            disordered += each.offset < highest.get(each.partition, -1)
            highest[each.partition] = max(each.offset, highest.get(each.partition, -1))
        turns = writers.setdefault(each.partition, [])
        if not turns or turns[-1] != each.member:
            turns.append(each.member)
    missing = [number for number in sent if number not in seen]
    unreadable = sum(map(waits, missing))
    return Conservation(
        acknowledged=len(sent),
        stored=sum(seen.values()),
        lost=len(missing) - unreadable,
        unreadable=unreadable,
        duplicated=sum(seen.values()) - len(seen),
        disordered=disordered,
        claims=len(writers),
        moved=sum(len(turns) > 1 for turns in writers.values()),
        moves=sum(len(turns) - 1 for turns in writers.values()),
    )


def check(ledger: Path, sink: Path, waits: Callable[[int], bool] = lambda _: False) -> Conservation:
    """Compare a producer's file with a sink's folder; ``waits`` as in :func:`compare`."""
    return compare(acknowledged(ledger), stored(sink), waits)
