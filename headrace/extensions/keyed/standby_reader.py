"""Standbys: the state of tasks that other members have is kept near to its end in the own store."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import structlog

from headrace.core.columns import ColumnRun
from headrace.core.records import offset_of
from headrace.core.user_text import describe_error
from headrace.extensions.keyed.changelog import loaded_rows
from headrace.extensions.keyed.errors import CorruptStoreError, StateStoreError
from headrace.extensions.keyed.positions import OUT_OF_RANGE, TRUNCATED
from headrace.extensions.keyed.state import CommittedRows
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from headrace.core.clock import Clock
    from headrace.core.records import Record
    from headrace.extensions.keyed.positions import StorePositions
    from headrace.extensions.keyed.store import RocksStore
    from headrace.kafka.ports import Fetched, RecordSource

log = structlog.get_logger(__name__)

#: Seconds until a partition is tried again that could not be read or written.
_BACKOFF = 5.0

#: Seconds between two fetches while a partition is restored, which others wait for.
_THROTTLE = 1.0

#: Seconds between two positions that are written where only marks of transactions came, and where
#: nothing did: so the state is known to be as new as that.
_CHECKPOINT, _QUIET_CHECKPOINT = 5.0, 60.0


class StandbyProgress(NamedTuple):
    """The progress of a copy: it has the changelog to this offset, and ``lag`` more are to come.

    ``lag`` is None while it is not known where the changelog ends, ``problem`` what it waits for.
    """

    position: int = 0
    lag: int | None = None
    problem: str | None = None


@dataclass(slots=True)
class _Followed:
    """One partition. ``position`` is None while it is not fetched. Times are monotonic.

    Before ``whole_from`` the store may have rows that are newer than the position: those that this
    member wrote as the owner, after the last position that it noted.
    """

    position: int | None = None
    whole_from: int = 0
    leader_epoch: int | None = None
    end: int | None = None
    noted_position: int = 0
    noted: float = 0.0
    not_before: float = 0.0
    lost: str | None = None
    problem: str | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether it is fetched, and all of its rows are of its position."""
        return self.position is not None and self.position >= self.whole_from

    def progress(self) -> StandbyProgress:
        """Return how far it is."""
        if self.position is None or self.end is None:
            return StandbyProgress(self.position or 0, None, self.problem)
        return StandbyProgress(self.position, max(0, self.end - self.position), self.problem)


class StandbyReader:
    """Follows changelogs without an end, with a consumer of its own, on the restorer's thread.

    Nothing that is followed is admitted: a partition that is to be processed is left first, and
    restored from where the store is then. ``is_busy`` says whether rows of a partition may still
    be written that its changelog lacks, ``is_held`` whether it is this member's, and ``is_blocked``
    whether the changelog is not what it was. Errors of brokers and disk are logged and tried again;
    of a corrupt store ``corrupt`` is told. :meth:`progress`, :meth:`readable` and :meth:`reading`
    are for any thread.
    """

    def __init__(
        self,
        name: str,
        positions: StorePositions,
        store: RocksStore,
        *,
        source: Callable[[], RecordSource],
        clock: Clock,
        is_busy: Callable[[int], bool],
        is_held: Callable[[int], bool],
        is_blocked: Callable[[], bool],
        corrupt: Callable[[CorruptStoreError], None],
    ) -> None:
        self._name = name
        self._positions = positions
        self._store = store
        self._open_source = source
        self._source: RecordSource | None = None
        self._clock = clock
        self._is_busy = is_busy
        self._is_held = is_held
        self._is_blocked = is_blocked
        self._corrupt = corrupt
        self._followed: dict[int, _Followed] = {}
        # held while a view of a copy is taken, and while its rows and its position change or it is
        # given up: what is written to a partition after that is of no copy
        self._copies = Lock()
        self._fetch_at = 0.0

    def progress(self) -> Mapping[int, StandbyProgress]:
        """Return how far each is."""
        return {number: each.progress() for number, each in list(self._followed.items())}

    def readable(self) -> list[int]:
        """Return the partitions whose copies can be read at this moment, by number."""
        return [number for number, each in sorted(self._followed.items()) if each.is_whole]

    @contextmanager
    def reading(self, number: int) -> Iterator[CommittedRows]:
        """Yield the rows of a copy as they are now, and how far it is; it goes on meanwhile.

        The rows are read without a lock: what is restored or followed does not wait for them.

        Raises:
            StateStoreError: there is no copy of the partition, or it cannot be relied on now.
        """
        with self._copies:
            followed = self._followed.get(number)
            if followed is None or not followed.is_whole:
                raise StateStoreError(
                    f"the copy of partition {number} is not followed at this moment; ask its owner"
                )
            # all that a copy has is written
            view, progress = self._store.view(), followed.progress()
        yield CommittedRows(view, number, progress)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is followed."""
        return not self._followed

    # --- what is followed -------------------------------------------------------------------

    def follow(self, numbers: Collection[int]) -> None:
        """Follow these partitions, and no others; one that is held is not."""
        for number in self._followed.keys() - set(numbers):
            self.leave(number)
        for number in sorted(set(numbers) - self._followed.keys()):
            if not self._is_held(number):
                self._followed[number] = _Followed()

    def leave(self, number: int) -> None:
        """Stop following a partition, of which the store is noted to be as near as it is."""
        with self._copies:
            followed = self._followed.pop(number, None)
        if followed is None or followed.position is None:
            return
        self._unassign(number)
        with_epoch = followed.leader_epoch or self._positions.epoch_of_end(number)
        try:
            self._store.note({number: self._positions.at(followed.position, with_epoch)})
        except StateStoreError as error:
            # the position before is right, too
            self._report(number, error)

    def drop(self, number: int) -> None:
        """Delete the rows of a partition that is neither held nor followed.

        Raises:
            StateStoreError: they cannot be deleted.
        """
        if number in self._followed or self._is_held(number) or self._is_busy(number):
            return
        self._store.drop(number)
        log.info("local_state_cleaned", channel=self._name, partition=number)

    def restart(self) -> None:
        """Read again from where the store is: it is another one now."""
        for number, followed in self._followed.items():
            self._put_off(number, followed, wait=0.0)

    def close(self) -> None:
        """Write how far all are, and release the client."""
        for number in list(self._followed):
            self.leave(number)
        if self._source is not None:
            self._source.close()

    # --- one turn ---------------------------------------------------------------------------

    def run_once(self, timeout: float, *, throttled: bool) -> None:
        """Write what has come, waiting so long for it; seldom while others are restored."""
        now = self._clock.monotonic()
        if throttled and now < self._fetch_at:
            return
        self._fetch_at = now + _THROTTLE
        if self._is_blocked():
            self.restart()
            return
        for number, followed in list(self._followed.items()):
            if followed.position is None and followed.not_before <= now:
                self._attempt(number, followed, partial(self._begin, number, followed))
        if self._source is None or all(each.position is None for each in self._followed.values()):
            return
        self._take(self._source.fetch(0.0 if throttled else timeout))
        for number, followed in list(self._followed.items()):
            if followed.position is not None:
                self._look_at_end(number, followed)

    def _attempt(self, number: int, followed: _Followed, step: Callable[[], None]) -> None:
        """Run a step of a partition, and try again later where it fails; the others go on."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - of brokers and disk; the thread goes on
            words = self._words(error)
            if words != followed.problem:
                followed.problem = words
                self._report(number, error)
            self._put_off(number, followed, wait=_BACKOFF)
            if isinstance(error, CorruptStoreError):
                self._corrupt(error)

    def _begin(self, number: int, followed: _Followed) -> None:
        """Ask where the changelog ends, and read on from where the store is."""
        if self._is_busy(number):
            return
        # what was committed here and not written would hide what is read now
        self._store.flush()
        low, high = self._positions.ends(number, hurried=True)
        stored = self._store.position(number)
        if stored is not None and stored.offset == high and followed.lost is None:
            followed.lost = self._positions.find_truncation(number, stored)
        start = self._positions.find_valid(number, low, high, followed.lost)
        followed.whole_from = high
        if start is None:
            self._store.drop(number)
            start, stored = low, None
            followed.whole_from = start
        followed.lost = None
        followed.leader_epoch = None if stored is None else stored.leader_epoch
        if self._source is None:
            self._source = self._open_source()
        partition = self._positions.partition(number)
        if followed.leader_epoch is None:
            self._source.assign({partition: start})
        else:
            self._source.assign({partition: start}, {partition: followed.leader_epoch})
        followed.position, followed.end = start, high
        followed.noted_position, followed.noted = start, self._clock.monotonic()
        log.info("standby_started", channel=self._name, partition=number, start=start, end=high)

    def _take(self, fetched: Fetched) -> None:
        for complaint in fetched.errors:
            log.warning("standby_failed", channel=self._name, error=complaint)
        for partition, records in fetched.chunks:
            number = partition.partition
            if (followed := self._reading(number)) is not None:
                epoch = fetched.leader_epochs.get(partition, followed.leader_epoch)
                write = partial(self._write, number, followed, records, epoch)
                self._attempt(number, followed, write)
        for partition, offset in fetched.ends:
            followed = self._reading(partition.partition)
            if followed is not None and offset > (followed.position or 0):
                # marks of transactions, which another leader may have written
                followed.position, followed.leader_epoch = offset, None
        gone = dict.fromkeys(fetched.out_of_range, OUT_OF_RANGE)
        gone |= dict.fromkeys((each for each, _ in fetched.truncated), TRUNCATED)
        for partition, reason in gone.items():
            if (followed := self._reading(partition.partition)) is not None:
                followed.lost = reason
                self._put_off(partition.partition, followed, wait=0.0)

    def _write(
        self,
        number: int,
        followed: _Followed,
        records: Sequence[Record],
        leader_epoch: int | None,
    ) -> None:
        """Write rows and their position, all of it or nothing."""
        last = records.next_offset if isinstance(records, ColumnRun) else offset_of(records[-1]) + 1
        position = self._positions.at(last, leader_epoch)
        with self._copies:
            self._store.load(number, loaded_rows(records), position, replaces=True)
            followed.position = followed.noted_position = last
        followed.leader_epoch = leader_epoch
        followed.noted = self._clock.monotonic()
        followed.problem = None

    def _look_at_end(self, number: int, followed: _Followed) -> None:
        """Read the end of the changelog, and store the position if it is due."""
        assert self._source is not None, "it is fetched"
        assert followed.position is not None, "it is fetched"
        end = self._source.high_watermark(self._positions.partition(number))
        if end is not None and end >= 0:
            followed.end = end
        since = self._clock.monotonic() - followed.noted
        moved = followed.position > followed.noted_position
        is_at_end = followed.end is not None and followed.position >= followed.end
        if since >= (_CHECKPOINT if moved else _QUIET_CHECKPOINT) and (moved or is_at_end):
            self._attempt(number, followed, partial(self._note, number, followed))

    def _note(self, number: int, followed: _Followed) -> None:
        assert followed.position is not None, "it is fetched"
        if followed.leader_epoch is None:
            followed.leader_epoch = self._positions.epoch_of_end(number)
        self._store.note({number: self._positions.at(followed.position, followed.leader_epoch)})
        followed.noted_position, followed.noted = followed.position, self._clock.monotonic()

    def _reading(self, number: int) -> _Followed | None:
        """Return a partition that is fetched, None where what came of it is not wanted now."""
        followed = self._followed.get(number)
        return None if followed is None or followed.position is None else followed

    def _put_off(self, number: int, followed: _Followed, wait: float) -> None:
        followed.not_before = self._clock.monotonic() + wait
        if followed.position is not None:
            with self._copies:
                followed.position = followed.end = None
            self._unassign(number)

    def _unassign(self, number: int) -> None:
        assert self._source is not None, "it was fetched"
        self._source.unassign([self._positions.partition(number)])

    def _report(self, number: int, error: Exception) -> None:
        log.warning(
            "standby_failed", channel=self._name, partition=number, error=self._words(error)
        )

    @staticmethod
    def _words(error: Exception) -> str:
        expected = isinstance(error, (KafkaUnavailableError, StateStoreError))
        return str(error) if expected else describe_error(error)
