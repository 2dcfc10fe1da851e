"""Admission: how fast a channel takes records, and what it leaves out when too many wait.

Decided at the processor's door, batch by batch, and never by a reducer. What overflows is part
of the micro-batch whose commit moves past it, so that each record is processed or left out, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from headrace.config import KeyedRejects, MicroBatchRejects
from headrace.core.columns import ColumnRun
from headrace.core.errors import ImportPathError
from headrace.core.imports import make
from headrace.core.letter_headers import OUR_HEADERS, Failure, LetterHeaders
from headrace.core.record_runs import CompactRun
from headrace.core.records import ResultRecord, offset_of
from headrace.processors.simple import RateLimit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.config import ChannelConfig
    from headrace.core.clock import Clock
    from headrace.core.records import Assignment, Batch, Record

_HASHES = 1 << 32


class OverflowChoice(Enum):
    """The choice of records to leave out when too many wait, as metrics and headers have it."""

    NEWEST = "newest"
    """Those that came last: what waited before is processed first."""

    OLDEST = "oldest"
    """Those that have waited longest: processing skips ahead."""

    SAMPLE = "sample"
    """All of some keys, by a hash, so that the others are whole. Of records without key, some."""

    OWN = "own"
    """Those that a policy of the user's own does not keep."""


class OverflowPolicy(Protocol):
    """A user's own choice of records to leave out: a class that is made without arguments."""

    def keep(self, record: Record, waiting: int, most: int) -> bool:
        """Return whether a record is processed, where ``waiting`` are more than ``most``.

        It is called for the records of a partition in their order, until those that it does not
        keep leave no more waiting than ``most``; after a failure again.
        """
        ...


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The limits of what a channel takes: ``max_rate`` records a second; None: as fast as it can.

    Where more than ``max_pending`` of a partition wait, what is beyond that overflows; with None
    nothing does. Copies go to the topic ``to``, if there is one, with the headers that ``letters``
    say.
    """

    max_rate: float | None = None
    max_pending: int | None = None
    choice: OverflowChoice = OverflowChoice.NEWEST
    to: str | None = None
    letters: LetterHeaders = OUR_HEADERS
    policy: OverflowPolicy | None = None

    @classmethod
    def of(cls, channel: ChannelConfig) -> AdmissionRules:
        """Return what the configuration says.

        Raises:
            ImportPathError: a policy of the user's own cannot be imported or made, or is none.
        """
        rejects = channel.rejects
        if not isinstance(rejects, MicroBatchRejects | KeyedRejects) or rejects.overflow == "wait":
            return cls(channel.max_rate)
        is_own = ":" in rejects.overflow_choice
        return cls(
            channel.max_rate,
            rejects.max_pending,
            OverflowChoice.OWN if is_own else OverflowChoice(rejects.overflow_choice),
            rejects.topic if rejects.overflow == "dead_letter" else None,
            LetterHeaders(rejects.headers, channel.group),
            _made_policy(rejects.overflow_choice) if is_own else None,
        )


@dataclass(frozen=True, slots=True)
class Overflow:
    """The records left out of a batch. ``copies`` has them where there is a topic for them."""

    choice: OverflowChoice
    count: int
    copies: Sequence[Record] = ()
    to: str | None = None
    letters: LetterHeaders = OUR_HEADERS

    def results(self) -> Iterator[ResultRecord]:
        """Yield the records as they are copied, with headers that say where they are from."""
        assert self.to is not None or not self.copies, "copies have a topic"
        failure = Failure(f"overflow ({self.choice.value})", code=Admission)
        for record in self.copies:
            kind, time = record.timestamp()
            said = {
                "topic": str(record.topic()),
                "partition": str(record.partition()),
                "offset": str(record.offset()),
                "overflow": self.choice.value,
            }
            ours = self.letters.of(said, failure)
            yield ResultRecord(
                self.to or "",
                record.value(),
                record.key(),
                [*(record.headers() or ()), *ours],
                None,
                time if kind else None,
            )


class Admission:
    """Decides for one channel. Any thread; batches of one partition one after the other."""

    def __init__(self, rules: AdmissionRules, clock: Clock) -> None:
        self._clock = clock
        self._decided: dict[Assignment, list[range]] = {}
        self._rules = AdmissionRules()
        self._rate: RateLimit | None = None
        self.follow(rules)

    def follow(self, rules: AdmissionRules) -> None:
        """Decide by other rules from the next batch on; a rate that is the same goes on."""
        rate = rules.max_rate
        if rate != self._rules.max_rate:
            self._rate = None if rate is None else RateLimit(rate, self._clock)
        self._rules = rules

    def forget(self, assignment: Assignment) -> None:
        """Drop the decision about a partition."""
        self._decided.pop(assignment, None)

    def pace(self, records: int) -> float:
        """Count admitted records; return when the next may be admitted, in monotonic time."""
        rate = self._rate
        return 0.0 if rate is None else self._clock.monotonic() + rate.take(records)

    def admit(self, batch: Batch) -> tuple[Batch, Overflow | None]:
        """Return the batch with what is let in, at the same offsets, and what overflows."""
        rules, end = self._rules, batch.assignment.high_watermark
        if rules.max_pending is None or end is None:
            return batch, None
        if rules.policy is not None:
            kept, over = _kept_by(rules.policy, batch.records, end - batch.start, rules.max_pending)
        elif rules.choice is OverflowChoice.SAMPLE:
            kept, over = _sampled(batch.records, rules.max_pending / max(1, end - batch.start))
        else:
            ranges = self._ranges(batch, end, rules.max_pending, rules.choice)
            kept, over = _split(batch.records, ranges)
        count = sum(map(len, over))
        if count == 0:
            return batch, None
        records = _join_parts(kept)
        size = batch.size * len(records) // max(1, len(batch))
        copies = [record for part in over for record in part] if rules.to is not None else ()
        found = Overflow(rules.choice, count, copies, rules.to, rules.letters)
        return replace(batch, records=records, size=size), found

    def _ranges(self, batch: Batch, end: int, most: int, choice: OverflowChoice) -> Sequence[range]:
        """Return the offsets to be left out, from the batch's on.

        Of the newest, what was decided before stands: it does not wait any more, and what waits
        before it is processed.
        """
        start = batch.start
        if choice is OverflowChoice.OLDEST:
            return [range(start, max(start, end - most))]
        known = [each for each in self._decided.get(batch.assignment, ()) if each.stop > start]
        waiting = end - start - sum(each.stop - max(start, each.start) for each in known)
        if waiting > most:
            first = max(end - (waiting - most), known[-1].stop if known else start)
            if known and known[-1].stop == first:
                first = known.pop().start
            known.append(range(first, end))
        self._decided[batch.assignment] = known
        return known


def _made_policy(path: str) -> OverflowPolicy:
    """Return a policy of the user's own."""
    policy = make(path, {})
    if not callable(getattr(policy, "keep", None)):
        raise ImportPathError(
            f"{path!r} makes a {type(policy).__name__}, which has no keep(record, waiting, most); "
            "write one, or take newest, oldest or sample as rejects.overflow_choice"
        )
    found: OverflowPolicy = policy
    return found


def _kept_by(
    policy: OverflowPolicy, records: Sequence[Record], waiting: int, most: int
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return the records that a policy keeps, and the others."""
    if waiting <= most:
        return [records], []
    kept: list[bool] = []
    for each in records:
        is_kept = waiting <= most or bool(policy.keep(each, waiting, most))
        kept.append(is_kept)
        waiting -= not is_kept  # what is left out does not wait any more
    return _split_by(records, kept)


def _split(
    records: Sequence[Record], ranges: Sequence[range]
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return what is beside the ranges, and what is in them; ranges rise and do not overlap."""
    bounds = [bound for each in ranges for bound in (each.start, each.stop)]
    cuts = [0, *(_count_before(records, bound) for bound in bounds), len(records)]
    parts = [records[start:stop] for start, stop in pairwise(cuts)]
    return [each for each in parts[::2] if each], [each for each in parts[1::2] if each]


def _count_before(records: Sequence[Record], offset: int) -> int:
    """Return how many records are before an offset."""
    low, high = 0, len(records)
    while low < high:
        middle = (low + high) // 2
        if offset_of(records[middle]) < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _sampled(
    records: Sequence[Record], share: float
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return the records of a share of the keys, and the others."""
    if share >= 1:
        return [records], []
    limit = int(share * _HASHES)
    return _split_by(records, [_hash(record) < limit for record in records])


def _split_by(
    records: Sequence[Record], keep: Sequence[bool]
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return the records that are kept, and the others."""
    if not isinstance(records, ColumnRun):
        kept = [record for record, good in zip(records, keep, strict=True) if good]
        others = [record for record, good in zip(records, keep, strict=True) if not good]
        return [kept], [others]
    return [_chosen_records(records, keep)], [_chosen_records(records, [not good for good in keep])]


def _chosen_records(run: ColumnRun, chosen: Sequence[bool]) -> Sequence[Record]:
    import pyarrow as pa  # noqa: PLC0415 - only with records in columns

    pieces, start = [], 0
    for piece in run.pieces:
        mask = pa.array(chosen[start : start + piece.num_rows], pa.bool_())
        start += piece.num_rows
        found = piece.filter(mask)
        if found.num_rows:
            pieces.append(found)
    return ColumnRun(run.partition, pieces) if pieces else ()


def _hash(record: Record) -> int:
    key = record.key()
    data = str(offset_of(record)).encode() if key is None else key
    return crc32(data)


def _join_parts(parts: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """Return parts as one sequence, empty without any."""
    if not parts:
        return ()
    first, *others = parts
    for other in others:
        if isinstance(first, CompactRun):
            assert isinstance(other, CompactRun), "parts of one run"
            first = first.followed_by(other)
        else:
            first = [*first, *other]
    return first
