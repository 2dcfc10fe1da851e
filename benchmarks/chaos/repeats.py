"""What was stored again, and why: how long before it the last commit was."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.chaos.commits import Commit
    from benchmarks.chaos.oracle import Stored

#: How many of a channel's repeats a result tells in full.
_TOLD = 5


@dataclass(frozen=True, slots=True)
class Repeat:
    """Records of one partition that were stored again in a row.

    ``records`` were there before; of these ``needless`` lie below the last commit before the first
    of them, so that their claim should have begun after them. ``uncommitted_s`` is how long the
    storing before it had gone on since that offset was committed first: a claim begins with a
    commit of what it found. ``at`` is in seconds since the epoch.
    """

    partition: str
    at: float
    member: str
    epoch: int
    records: int
    needless: int
    uncommitted_s: float


def repeats(found: Iterable[Stored], commits: Iterable[Commit]) -> list[Repeat]:
    """Return what was stored again, partition by partition in the order of storing."""
    committed: dict[str, list[Commit]] = defaultdict(list)
    for commit in commits:
        committed[f"{commit.topic}-{commit.partition}"].append(commit)
    return [
        repeat
        for partition, rows in groupby(found, key=lambda each: each.partition)
        for repeat in _of_partition(list(rows), committed[partition])
    ]


def summary(found: Sequence[Repeat]) -> dict[str, Any]:
    """Return the sums, and the largest of them in full."""
    largest = sorted(found, key=lambda each: -each.records)[:_TOLD]
    return {
        "times": len(found),
        "records": sum(each.records for each in found),
        "needless": sum(each.needless for each in found),
        "longest_uncommitted_s": max((each.uncommitted_s for each in found), default=0.0),
        "largest": [asdict(each) for each in largest],
    }


def _of_partition(rows: list[Stored], commits: Sequence[Commit]) -> Iterator[Repeat]:
    seen: set[int] = set()
    times = [commit.at for commit in commits]
    before: Stored | None = None
    for run in _runs(rows):
        again = [row for row in run if row.number in seen]
        if again and before is not None:
            first = again[0]
            last = _last(commits[: bisect_right(times, first.at)])
            yield Repeat(
                partition=first.partition,
                at=round(first.at, 1),
                member=first.member,
                epoch=first.epoch,
                records=len(again),
                needless=sum(row.offset < last.offset for row in again) if last else 0,
                uncommitted_s=round(max(before.at - (last.at if last else rows[0].at), 0.0), 1),
            )
        seen.update(row.number for row in run)
        before = run[-1]


def _last(commits: Sequence[Commit]) -> Commit | None:
    """Return the first of the last commits, which have one offset."""
    found = None
    for commit in reversed(commits):
        if found is not None and commit.offset != found.offset:
            break
        found = commit
    return found


def _runs(rows: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Divide rows where the claim is another one or the offset goes back."""
    run: list[Stored] = []
    for row in rows:
        if run and (row.epoch != run[-1].epoch or row.offset <= run[-1].offset):
            yield run
            run = []
        run.append(row)
    if run:
        yield run
