"""Restoring: a partition's state is brought up to its changelog before anything is delivered."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

import structlog

from headrace.core.columns import ColumnRun
from headrace.core.records import offset_of
from headrace.core.user_text import describe_error
from headrace.extensions.keyed.changelog import loaded_rows
from headrace.extensions.keyed.errors import CorruptStoreError, StateStoreError
from headrace.extensions.keyed.positions import OUT_OF_RANGE, TRUNCATED, StorePositions
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from headrace.core.clock import Clock, Deadline
    from headrace.core.records import Assignment, Record, TopicPartition
    from headrace.extensions.keyed.standby_reader import StandbyReader
    from headrace.extensions.keyed.store import RocksStore
    from headrace.extensions.keyed.topics import Changelog
    from headrace.kafka.ports import Fetched, RecordSource, TopicCatalog

log = structlog.get_logger(__name__)

#: Seconds of one fetch, and so of the wait for a command while something is restored.
_FETCH_TIMEOUT = 0.1

#: Seconds without a command after which the thread looks whether it has to stop.
_IDLE_INTERVAL = 0.5

#: Seconds between two attempts.
_BACKOFF = 1.0

#: What comes of counting rows when all are counted.
_ENDED = object()

#: Seconds after which a changelog that has not all rows is looked at again.
_LOOK_AGAIN = 10.0

#: Seconds in which a restore has to come nearer to its end, before it is said who holds it up.
_STALL = 30.0

#: Seconds between two positions that are written while a partition is restored.
_CHECKPOINT = 5.0

#: Offsets of a restore from which on it is written in bulk. All of the database's memory is written
#: at its end then, others' rows included, which takes longer than the log of a few rows.
_BULK = 50_000


class RestoreProgress(NamedTuple):
    """The progress of a partition's restore. ``done`` and ``total`` count offsets of its changelog.

    ``total`` is None while it is not known where the changelog ends; ``left`` are the seconds that
    the rest takes if it goes on so, None while nothing can be told.
    """

    done: int = 0
    total: int | None = None
    left: float | None = None


@dataclass(slots=True)
class _Restore:
    """One partition under way. ``start`` and ``end`` are offsets of the changelog.

    ``begun`` and the other times are of the monotonic clock.
    """

    assignment: Assignment
    attempt: int
    start: int = 0
    position: int = 0
    end: int | None = None
    not_before: float = 0.0
    noted: float = 0.0
    begun: float = 0.0
    problem: str | None = None
    leader_epoch: int | None = None
    lost: str | None = None
    moved: float = 0.0
    seen: int = -1
    is_stalled: bool = False

    def progress(self, now: float) -> RestoreProgress:
        """Return how far it is."""
        if self.end is None:
            return RestoreProgress()
        done, total = self.position - self.start, self.end - self.start
        knows_rate = done > 0 and not self.is_stalled
        left = (now - self.begun) * (total - done) / done if knows_rate else None
        return RestoreProgress(done, total, left)


class Restorer:
    """Follows the changelog on a thread of its own, one consumer for all partitions of a channel.

    ``begin`` and ``end`` are for any thread and do not block. ``ready`` is called on the thread
    when a partition's state is there, with the ``attempt`` that it was begun for: of several the
    last is told. ``corrupt`` is called there when the store is found to be, and ``troubled`` with
    what a partition under way waits for, None once it goes on. Errors of brokers and disk are
    logged and tried again.

    ``refuse`` is asked before a partition begins, with its changelog's first offset and end, and
    with where that was found to be truncated, None where it was not. What it returns is why rows
    are missing there: then nothing is read, nothing of the local store is dropped, and it is asked
    again later; None: go on.

    ``stalled`` is called on the thread with what holds up a partition that has come no nearer to
    its end for a while, None once it goes on; ``holder`` is asked for it, on a thread of its own,
    and may block.

    ``standbys`` are read on the thread as well, seldom while anything is restored: so no partition
    is followed and restored at a time.
    """

    def __init__(
        self,
        name: str,
        changelog: Changelog,
        store: RocksStore,
        *,
        source: Callable[[], RecordSource],
        catalog: TopicCatalog,
        clock: Clock,
        is_busy: Callable[[int], bool],
        ready: Callable[[Assignment, int], None],
        corrupt: Callable[[CorruptStoreError], None],
        troubled: Callable[[Assignment, int, str | None], None] = lambda *_: None,
        refuse: Callable[[Assignment, tuple[int, int], int | None], str | None] = lambda *_: None,
        stalled: Callable[[Assignment, int, str | None], None] = lambda *_: None,
        holder: Callable[[TopicPartition], str] = str,
        standbys: StandbyReader | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._open_source = source
        self._source: RecordSource | None = None
        self._positions = StorePositions(name, changelog, store, catalog, clock)
        self._clock = clock
        self._is_busy = is_busy
        self._ready = ready
        self._corrupt = corrupt
        self._troubled = troubled
        self._refuse = refuse
        self._stalled = stalled
        self._holder = holder
        self._standbys = standbys
        self._remake: Callable[[], Iterable[tuple[Assignment, int]] | None] | None = None
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._under_way: dict[int, _Restore] = {}
        self._measuring: dict[int, Iterator[None]] = {}
        self._thread = threading.Thread(target=self._run, name=f"restore-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread; say whether it ended in time."""
        self._stopping.set()
        # it may wait for a command
        self._commands.put(lambda: None)
        return deadline.joined(self._thread)

    def begin(self, assignment: Assignment, attempt: int) -> None:
        """Restore a partition, from the beginning where the store has nothing that is right."""
        self._commands.put(lambda: self._start_partition(assignment, attempt))

    def begin_again(self, remake: Callable[[], Iterable[tuple[Assignment, int]] | None]) -> None:
        """Create a new store with ``remake``, and restore the partitions that it returns.

        It is called on the thread, until it returns: nothing is restored meanwhile, so that
        nothing of what was under way is taken for what the new store has. None: the store is the
        same as before.
        """

        def set_remake() -> None:
            self._remake = remake

        self._commands.put(set_remake)

    def end(self, assignment: Assignment) -> None:
        """Leave a partition as it is: it is no longer ours."""
        number = assignment.partition.partition
        self._commands.put(lambda: self._drop(number, assignment))

    def follow(self, numbers: Collection[int]) -> None:
        """Keep the state of these partitions, which are not ours, near to its end; of no others."""
        if self._standbys is not None:
            self._commands.put(partial(self._standbys.follow, frozenset(numbers)))

    def clean(self, number: int) -> None:
        """Delete what the store has of a partition that is neither ours nor followed."""
        if self._standbys is not None:
            self._commands.put(partial(self._standbys.drop, number))

    def progress(self) -> Mapping[int, RestoreProgress]:
        """Return how far the partitions are whose state is not there yet. Any thread."""
        now = self._clock.monotonic()
        return {number: each.progress(now) for number, each in list(self._under_way.items())}

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._take_commands()
                    self._run_once()
                except CorruptStoreError as error:
                    self._corrupt(error)
                except Exception as error:  # noqa: BLE001 - of brokers and disk; the thread goes on
                    self._report(error)
                    self._stopping.wait(_BACKOFF)
        finally:
            self._measuring.clear()
            if self._standbys is not None:
                self._standbys.close()
            if self._source is not None:
                self._source.close()

    def _report(self, error: Exception, **fields: int) -> None:
        words, traced = _said_of(error), not isinstance(error, _EXPECTED)
        log.warning("restore_failed", channel=self._name, **fields, error=words, exc_info=traced)

    def _note_problem(self, restoring: _Restore, problem: str | None) -> None:
        if problem != restoring.problem:
            restoring.problem = problem
            self._troubled(restoring.assignment, restoring.attempt, problem)

    @contextmanager
    def _step(self, number: int, restoring: _Restore) -> Iterator[None]:
        """Restart a partition later if a step of it fails in the block; the others go on.

        What was fetched is gone then, so that it goes on from where the store is.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of brokers and disk; the thread goes on
            words = _said_of(error)
            if words != restoring.problem:
                self._report(error, partition=number)
            self._put_off(number, restoring)
            self._note_problem(restoring, words)
            if isinstance(error, CorruptStoreError):
                self._corrupt(error)

    def _put_off(self, number: int, restoring: _Restore) -> None:
        restoring.not_before = self._clock.monotonic() + _BACKOFF
        # the callback that was told that it is ready may have failed
        self._under_way.setdefault(number, restoring)
        if restoring.end is not None:
            restoring.end = None
            self._unassign(number)

    def _take_commands(self) -> None:
        wait = not self._under_way and not self._measuring and self._remake is None
        wait = wait and (self._standbys is None or self._standbys.is_idle)
        while True:
            try:
                command = self._commands.get(wait, _IDLE_INTERVAL if wait else None)
            except Empty:
                return
            command()
            wait = False

    def _start_partition(self, assignment: Assignment, attempt: int) -> None:
        """Start restoring a partition, and drop what was under way of it."""
        number = assignment.partition.partition
        former = self._under_way.get(number)
        if former is None or former.assignment is not assignment or former.attempt < attempt:
            self._leave_partition(number)
            if self._standbys is not None:
                self._standbys.leave(number)
            self._under_way[number] = _Restore(assignment, attempt)

    def _leave_partition(self, number: int) -> None:
        former = self._under_way.pop(number, None)
        if former is not None and former.end is not None:
            self._unassign(number)
            try:
                self._store.end_load(number)
            except StateStoreError as error:
                # what is noted of it later waits until it is written
                self._report(error, partition=number)
        self._measuring.pop(number, None)

    def _run_once(self) -> None:
        if self._remake is not None:
            self._make_again(self._remake)
        now = self._clock.monotonic()
        for number, each in list(self._under_way.items()):
            if each.end is None and each.not_before <= now and not self._is_busy(number):
                with self._step(number, each):
                    self._begin_reading(number, each)
        if any(each.end is not None for each in self._under_way.values()):
            assert self._source is not None, "opened with the first of them"
            self._write_fetched(self._source.fetch(_FETCH_TIMEOUT))
            self._look_for_stalls()
        elif self._measuring:
            begun = self._clock.monotonic()
            self._measure()
            # what counts holds the interpreter: others have it for three times as long, so that
            # the first micro-batches after a start do not wait for it
            self._stopping.wait(3 * (self._clock.monotonic() - begun))
        elif self._under_way:
            self._stopping.wait(_FETCH_TIMEOUT)
        self._follow_on()

    def _follow_on(self) -> None:
        """Write what has come of others' partitions, without a wait where something is restored."""
        if self._standbys is not None and not self._standbys.is_idle:
            is_alone = not self._under_way and not self._measuring
            timeout = _FETCH_TIMEOUT if is_alone else 0.0
            self._standbys.run_once(timeout, throttled=bool(self._under_way))

    def _make_again(self, remake: Callable[[], Iterable[tuple[Assignment, int]] | None]) -> None:
        """Make another store, and restore all that is to be."""
        # what is being counted keeps the files open
        counted = list(self._measuring)
        self._measuring.clear()
        if self._standbys is not None:
            # an empty store is no copy
            self._standbys.restart()
        to_restore = remake()
        self._remake = None
        if to_restore is None:
            self._measuring.update({number: self._store.measure(number) for number in counted})
        else:
            for number in list(self._under_way):
                self._leave_partition(number)
            for assignment, attempt in to_restore:
                self._start_partition(assignment, attempt)

    def _measure(self) -> None:
        """Continue counting the partitions' rows, once nothing waits for its state."""
        number, steps = next(iter(self._measuring.items()))
        try:
            if next(steps, _ENDED) is _ENDED:
                del self._measuring[number]
        except StateStoreError:
            del self._measuring[number]
            raise

    def _begin_reading(self, number: int, restoring: _Restore) -> None:
        """Ask where the changelog ends, and read on from where the store is."""
        # what was committed here and not written would hide what is read now
        self._store.flush()
        is_fetching = any(each.end is not None for each in self._under_way.values())
        low, high = self._positions.ends(number, hurried=is_fetching)
        position = self._store.position(number)
        if position is not None and position.offset == high and restoring.lost is None:
            restoring.position = high
            restoring.lost = self._positions.find_truncation(number, position)
        truncated = restoring.position if restoring.lost == TRUNCATED else None
        if self._refuse(restoring.assignment, (low, high), truncated):
            restoring.not_before = self._clock.monotonic() + _LOOK_AGAIN
            return
        start = self._positions.find_valid(number, low, high, restoring.lost)
        if start is None:
            self._store.drop(number)
            start, position = low, None
        restoring.leader_epoch = None if position is None else position.leader_epoch
        restoring.lost = None
        restoring.start = restoring.position = start
        restoring.begun = restoring.noted = self._clock.monotonic()
        if start >= high:
            self._finish(number, restoring, high)
            return
        log.info(
            "restore_started",
            channel=self._name,
            partition=number,
            start=start,
            end=high,
        )
        if self._source is None:
            self._source = self._open_source()
        if restoring.leader_epoch is None:
            self._source.assign({self._positions.partition(number): start})
        else:
            epochs = {self._positions.partition(number): restoring.leader_epoch}
            self._source.assign({self._positions.partition(number): start}, epochs)
        restoring.end = high

    def _write_fetched(self, fetched: Fetched) -> None:
        """Write what was fetched, and see who has reached the end."""
        for complaint in fetched.errors:
            self._take_complaint(complaint)
        for partition, records in fetched.chunks:
            number = partition.partition
            if (restoring := self._fetching(number)) is not None:
                with self._step(number, restoring):
                    epoch = fetched.leader_epochs.get(partition, restoring.leader_epoch)
                    restoring.leader_epoch = epoch
                    self._write(number, restoring, records)
        self._pass_marks(fetched.ends)
        gone = dict.fromkeys(fetched.out_of_range, OUT_OF_RANGE)
        gone |= dict.fromkeys((each for each, _ in fetched.truncated), TRUNCATED)
        for partition, reason in gone.items():
            if (restoring := self._fetching(partition.partition)) is not None:
                restoring.lost = reason
                self._put_off(partition.partition, restoring)
        for number, restoring in list(self._under_way.items()):
            if restoring.end is not None and restoring.position >= restoring.end:
                with self._step(number, restoring):
                    self._finish(number, restoring, restoring.end)
                    self._unassign(number)

    def _look_for_stalls(self) -> None:
        """Find out who holds up what comes no nearer to its end."""
        now = self._clock.monotonic()
        for number, restoring in self._under_way.items():
            if restoring.seen != restoring.position or restoring.end is None:
                restoring.seen, restoring.moved = restoring.position, now
                if restoring.is_stalled:
                    restoring.is_stalled = False
                    self._stalled(restoring.assignment, restoring.attempt, None)
            elif not restoring.is_stalled and now - restoring.moved >= _STALL:
                restoring.is_stalled = True
                threading.Thread(
                    target=self._ask_who_holds,
                    args=(number, restoring),
                    name=f"restore-stall-{self._name}",
                    daemon=True,
                ).start()

    def _ask_who_holds(self, number: int, restoring: _Restore) -> None:
        """Find what delays a partition, to be reported on our thread. On a thread of its own."""
        try:
            held_by = self._holder(self._positions.partition(number))
        except Exception as error:  # noqa: BLE001 - of the brokers; that it stalled is told all the same
            held_by = f"who holds it up is not known: {error}"
        self._commands.put(lambda: self._report_stall(number, restoring, held_by))

    def _report_stall(self, number: int, restoring: _Restore, held_by: str) -> None:
        if self._under_way.get(number) is not restoring or not restoring.is_stalled:
            return
        log.error(
            "restore_stalled",
            channel=self._name,
            partition=number,
            position=restoring.position,
            end=restoring.end,
            seconds=round(self._clock.monotonic() - restoring.moved),
            held_by=held_by,
        )
        reason = (
            f"the restore of {self._positions.partition(number)} has come no further than "
            f"{restoring.position} of {restoring.end}: {held_by}; headrace transactions list shows "
            "it, abort ends one that hangs, and headrace transactions settle what is held back for "
            "good"
        )
        self._stalled(restoring.assignment, restoring.attempt, reason)

    def _take_complaint(self, complaint: str) -> None:
        """Log an error of the client, once until it continues."""
        waiting = [each for each in self._under_way.values() if each.end is not None]
        if any(each.problem != complaint for each in waiting):
            log.warning("restore_failed", channel=self._name, error=complaint)
        for each in waiting:
            self._note_problem(each, complaint)

    def _pass_marks(self, ends: Iterable[tuple[TopicPartition, int]]) -> None:
        """Set positions to ends that were reached after the last row."""
        for partition, offset in ends:
            restoring = self._fetching(partition.partition)
            if restoring is not None and offset > restoring.position:
                # marks of transactions, which another leader may have written: under the epoch of
                # the last row the log would not be known to lead there
                restoring.leader_epoch = self._positions.epoch_of_end(partition.partition)
                restoring.position = offset

    def _fetching(self, number: int) -> _Restore | None:
        """Return a partition that is fetched, None where what came of it is not wanted now."""
        restoring = self._under_way.get(number)
        return None if restoring is None or restoring.end is None else restoring

    def _write(self, number: int, restoring: _Restore, records: Sequence[Record]) -> None:
        last = _next_offset(records)
        now = self._clock.monotonic()
        position = None
        if now - restoring.noted >= _CHECKPOINT:
            restoring.noted = now
            position = self._positions.at(last, restoring.leader_epoch)
        in_bulk = restoring.end is not None and restoring.end - restoring.start >= _BULK
        self._store.load(number, loaded_rows(records), position, in_bulk=in_bulk)
        restoring.position = last
        self._note_problem(restoring, None)

    def _finish(self, number: int, restoring: _Restore, end: int) -> None:
        self._store.note({number: self._positions.at(end, restoring.leader_epoch)})
        del self._under_way[number]
        if restoring.is_stalled:
            self._stalled(restoring.assignment, restoring.attempt, None)
        self._measuring[number] = self._store.measure(number)
        if end > restoring.start:
            log.info(
                "restore_finished",
                channel=self._name,
                partition=number,
                offsets=end - restoring.start,
            )
        self._ready(restoring.assignment, restoring.attempt)

    def _drop(self, number: int, assignment: Assignment) -> None:
        restoring = self._under_way.get(number)
        if restoring is None or restoring.assignment is assignment:
            self._leave_partition(number)

    def _unassign(self, number: int) -> None:
        if self._source is not None:
            self._source.unassign([self._positions.partition(number)])


#: What brokers and disk are expected to fail with.
_EXPECTED = (KafkaUnavailableError, StateStoreError)


def _said_of(error: Exception) -> str:
    return str(error) if isinstance(error, _EXPECTED) else describe_error(error)


def _next_offset(records: Sequence[Record]) -> int:
    return records.next_offset if isinstance(records, ColumnRun) else offset_of(records[-1]) + 1
