"""The thread that reads from Kafka into the buffers of the owned partitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from operator import itemgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from headrace.channel.buffer import BufferedRecords, chunk_of
from headrace.channel.events import GapSkipped, LogTruncated, OffsetOutOfRange
from headrace.core.records import offset_of
from headrace.core.supervision import PeriodicThread
from headrace.kafka.ports import Fetched
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from headrace.channel.partition import OwnedPartition
    from headrace.core.clock import Clock, Deadline
    from headrace.core.record_runs import Run
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import RecordSource
    from headrace.telemetry.metrics import Metrics
    from headrace.telemetry.thread_time import ThreadTime


T = TypeVar("T")

#: A paused partition is fetched again when it holds less than this part of its share, so that
#: pausing, which throws prefetched records away, does not alternate with resuming.
RESUME_BELOW = 0.5

#: As long as less than this part of the budget is used none is paused: the hungry are fetched
#: with the others. With many partitions one is always hungry and some are always over their share.
ROOMY_BELOW = 0.5


class BufferSnapshot(NamedTuple):
    """One partition as the rules see it: bytes held, whether it could use more, whether paused."""

    partition: TopicPartition
    held: int
    hungry: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The next steps of the fetcher. ``shed`` names partitions that give up unread records."""

    fetch: bool
    pause: frozenset[TopicPartition] = frozenset()
    resume: frozenset[TopicPartition] = frozenset()
    shed: frozenset[TopicPartition] = frozenset()


def decide(snapshots: Collection[BufferSnapshot], budget: int) -> Decision:
    """Share ``budget`` bytes among partitions so that a slow one starves no other.

    Each partition has an equal share. As long as there is plenty of room, or no other partition is
    hungry, one may hold more. Else those over their share are paused, and where the budget is used
    up they give unread records back. When the budget is full and none is hungry, fetching just
    stops: that throws nothing away.
    """
    if not snapshots:
        return Decision(fetch=True)
    share = budget // len(snapshots)
    held = sum(snapshot.held for snapshot in snapshots)
    full, roomy = held >= budget, held < budget * ROOMY_BELOW
    over = frozenset(r.partition for r in snapshots if r.held >= share)
    hungry = any(r.hungry and r.partition not in over for r in snapshots)
    resume = frozenset(r.partition for r in snapshots if r.paused and r.held < share * RESUME_BELOW)
    if roomy or not hungry:
        return Decision(fetch=not full, resume=resume)
    pause = frozenset(r.partition for r in snapshots if r.partition in over and not r.paused)
    return Decision(fetch=True, pause=pause, resume=resume, shed=over if full else frozenset())


def leeway(snapshots: Collection[BufferSnapshot], budget: int) -> int:
    """Return how many bytes may be fetched before the rules can say anything else.

    None where a partition is paused, because it may have room soon. Of what is handed out a
    processor may hold a copy: even then not more than the budget is used.
    """
    if any(snapshot.paused for snapshot in snapshots):
        return 0
    return max(0, int(budget * ROOMY_BELOW) - sum(snapshot.held for snapshot in snapshots))


log = structlog.get_logger(__name__)

#: Seconds a fetch waits for records. It bounds how late a command is heard.
FETCH_TIMEOUT = 0.05

#: What a fetch returns that found nothing.
NOTHING = Fetched()

#: A fetcher looks at its budget when this part of it was fetched since the last time, or as much as
#: there was leeway, and after so many fetches: for each one it would cost as much as taking 50
#: records from the client. A look goes over all partitions; with many of them it comes less often,
#: or a fifth of the process is looks at 1,000, but at the latest after so many seconds, for what is
#: paused to be resumed.
BALANCES_PER_BUDGET = 32
FETCHES_PER_BALANCE = 10
LOOKED_AT_PER_FETCH = 10
BALANCE_INTERVAL = 0.5

#: Seconds between two looks at the watermarks, which the client knows without asking.
WATERMARK_INTERVAL = 0.5

#: Seconds without a turn after which the thread counts as hung. A turn waits for FETCH_TIMEOUT, and
#: beside that only tells the client what to do.
STALL_TIMEOUT = 30.0


class _Command(Enum):
    """The command that a partition is named for."""

    ASSIGN = auto()
    UNASSIGN = auto()
    SEEK = auto()


@dataclass(slots=True)
class _Slot:
    """A partition as the fetcher has it: the buffer generation that its client fetches for."""

    owned: OwnedPartition
    generation: int
    paused: bool = False


class Fetcher(PeriodicThread):
    """Owns one record source and the loop that reads it.

    ``assign``, ``unassign`` and ``seek`` may be called on any thread and do not block. A partition
    is fetched from where its buffer ends; what still arrives for an older generation of
    the buffer is dropped there. ``budget`` is in bytes, and may be another at each look.
    """

    def __init__(
        self,
        source: RecordSource,
        *,
        budget: Callable[[], int],
        touch: Callable[[OwnedPartition], None],
        metrics: Metrics,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._source = source
        self._budget = budget
        self._touch = touch
        self._metrics = metrics
        self._gauge = metrics.buffer_bytes.labels(channel)
        self._channel = channel
        self._clock = clock
        self._log = log.bind(channel=channel)
        self._commands: SimpleQueue[tuple[_Command, OwnedPartition]] = SimpleQueue()
        self._slots: dict[TopicPartition, _Slot] = {}
        self._watermarks_at = 0.0
        self._may_fetch = True
        self._fetches = 0
        self._fetched_bytes = 0
        self._leeway = 0
        self._balanced_at = 0.0
        self._last_beat = clock.monotonic()
        super().__init__(f"{channel}-fetcher", fail)

    @property
    def last_beat(self) -> float:
        return self._last_beat

    @property
    def stall_timeout(self) -> float | None:
        """Return the seconds within which there has to be another turn; None unless it runs.

        None also once it stops: closing the client takes its time.
        """
        return STALL_TIMEOUT if self._thread.is_alive() and not self._stopping.is_set() else None

    @property
    def fetching(self) -> bool:
        """Return whether the budget leaves room for more records."""
        return self._may_fetch

    def assign(self, partition: OwnedPartition) -> None:
        """Start fetching ``partition``."""
        self._commands.put((_Command.ASSIGN, partition))

    def unassign(self, partition: OwnedPartition) -> None:
        """Stop fetching ``partition``."""
        self._commands.put((_Command.UNASSIGN, partition))

    def seek(self, partition: OwnedPartition) -> None:
        """Fetch ``partition`` from where its restarted buffer wants to go on."""
        self._commands.put((_Command.SEEK, partition))

    def stop(self, deadline: Deadline) -> bool:
        """End the thread and close the source; False if it overran the deadline."""
        if self._thread.ident is None:
            self._source.close()
        return super().stop(deadline)

    def _run(self) -> None:
        time = self._metrics.thread_time(self._channel, ThreadRole.FETCHER)
        try:
            while not self._stopping.is_set():
                self._last_beat = self._clock.monotonic()
                time.switch_to(ThreadActivity.FETCH)
                self._run_commands()
                self._look_at_balance()
                if self._may_fetch:
                    self._fetch(time)
                else:
                    time.switch_to(ThreadActivity.BACK_PRESSURE)
                    self._stopping.wait(FETCH_TIMEOUT)
                self._look_at_watermarks()
        finally:
            self._metrics.forget_thread(time)
            self._source.close()

    def _fetch(self, time: ThreadTime) -> None:
        fetched = self._source.fetch(0)
        if fetched == NOTHING:
            time.switch_to(ThreadActivity.IDLE)
            fetched = self._source.fetch(FETCH_TIMEOUT)
            time.switch_to(ThreadActivity.FETCH)
        self._distribute(fetched)

    # --- commands -------------------------------------------------------------------------------

    def _run_commands(self) -> None:
        """Run queued commands, grouped: a client call costs by all assigned partitions."""
        commands = []
        while not self._commands.empty():
            commands.append(self._commands.get_nowait())
        for command, run in groupby(commands, itemgetter(0)):
            partitions = [owned for _, owned in run]
            match command:
                case _Command.ASSIGN:
                    self._assign(partitions)
                case _Command.UNASSIGN:
                    self._unassign(self._live_slots(partitions))
                case _Command.SEEK:
                    self._position_client(self._live_slots(partitions))

    def _live_slots(self, partitions: Iterable[OwnedPartition]) -> Collection[_Slot]:
        """Return the slots of those that are fetched, and not for a later claim."""
        found = {}
        for owned in partitions:
            slot = self._slots.get(owned.partition)
            if slot is not None and slot.owned is owned:
                found[owned.partition] = slot
        return found.values()

    def _assign(self, partitions: Iterable[OwnedPartition]) -> None:
        starts: dict[TopicPartition, int] = {}
        epochs: dict[TopicPartition, int] = {}
        complete = []
        for owned in partitions:
            generation, starts[owned.partition], epoch = owned.progress.buffer.aim()
            if epoch is not None:
                epochs[owned.partition] = epoch
            self._slots[owned.partition] = _Slot(owned, generation)
            if owned.progress.buffer.complete:
                complete.append(owned.partition)
        self._source.assign(starts, epochs)
        if complete:
            self._source.pause(complete)

    def _unassign(self, slots: Collection[_Slot]) -> None:
        gone = [slot.owned.partition for slot in slots]
        for partition in gone:
            del self._slots[partition]
        if gone:
            self._source.unassign(gone)

    # --- records --------------------------------------------------------------------------------

    def _distribute(self, fetched: Fetched) -> None:
        now = self._clock.monotonic()
        for slot, records in self._with_slots(fetched.chunks):
            self._keep_records(slot, records, now, fetched.leader_epochs.get(slot.owned.partition))
        for slot, end in self._with_slots(fetched.ends):
            self._pass_gap(slot, end)
        for slot, _ in self._with_slots((each, None) for each in fetched.out_of_range):
            self._post(slot, OffsetOutOfRange(slot.generation))
        for slot, former_end in self._with_slots(fetched.truncated):
            self._post(slot, LogTruncated(slot.generation, former_end))
        for error in fetched.errors:
            self._log.warning("fetch_error", error=error)

    def _with_slots(self, items: Iterable[tuple[TopicPartition, T]]) -> Iterator[tuple[_Slot, T]]:
        """Yield what came of the partitions that are still fetched."""
        for partition, item in items:
            slot = self._slots.get(partition)
            if slot is not None:
                yield slot, item

    def _keep_records(
        self, slot: _Slot, records: Run, now: float, leader_epoch: int | None = None
    ) -> None:
        owned = slot.owned
        wanted = owned.progress.buffer.before_bound(records)
        if wanted:
            chunk = chunk_of(wanted)
            self._fetched_bytes += chunk.size
            limits = owned.progress.next_batch.waits_for()
            kept = owned.progress.buffer.append(slot.generation, chunk, now, limits, leader_epoch)
            if kept is BufferedRecords.SOONER:
                self._touch(owned)
        if len(wanted) < len(records):
            self._pass_gap(slot, offset_of(records[len(wanted)]))
        elif owned.progress.buffer.complete:
            self._source.pause([owned.partition])

    def _pass_gap(self, slot: _Slot, end: int) -> None:
        """Advance past a gap up to ``end``; at the bound, stop fetching."""
        buffer = slot.owned.progress.buffer
        gap = buffer.pass_gap(slot.generation, end)
        if gap is not None:
            self._post(slot, GapSkipped(slot.generation, gap))
        if buffer.complete:
            self._touch(slot.owned)
            self._source.pause([slot.owned.partition])

    def _post(self, slot: _Slot, event: GapSkipped | OffsetOutOfRange | LogTruncated) -> None:
        slot.owned.post(event)
        self._touch(slot.owned)

    # --- back-pressure --------------------------------------------------------------------------

    def _look_at_balance(self) -> None:
        """Balance once in a while as long as records come, always when none did."""
        self._fetches += 1
        if self._is_balance_due():
            self._fetches = self._fetched_bytes = 0
            self._balanced_at = self._last_beat
            self._may_fetch = self._balance().fetch

    def _is_balance_due(self) -> bool:
        fetches = max(FETCHES_PER_BALANCE, len(self._slots) // LOOKED_AT_PER_FETCH)
        return (
            self._fetched_bytes == 0
            or self._fetched_bytes >= max(self._leeway, self._budget() // BALANCES_PER_BUDGET)
            or self._fetches >= fetches
            or self._last_beat - self._balanced_at >= BALANCE_INTERVAL
        )

    def _balance(self) -> Decision:
        budget = self._budget()
        share = budget // max(1, len(self._slots))
        snapshots = [self._snapshot(slot, share) for slot in self._slots.values()]
        self._gauge.set(sum(snapshot.held for snapshot in snapshots))
        self._leeway = leeway(snapshots, budget)
        decision = decide(snapshots, budget)
        self._shed_buffers([self._slots[partition] for partition in decision.shed])
        self._pause(decision)
        return decision

    def _snapshot(self, slot: _Slot, share: int) -> BufferSnapshot:
        owned = slot.owned
        owned.progress.next_batch.set_share(share)
        held = owned.held_bytes()
        end = owned.high_watermark
        done = owned.progress.buffer.complete
        lagging = end is not None and owned.progress.buffer.fetch_offset < end and not done
        hungry = owned.progress.buffer.size == 0 and lagging
        return BufferSnapshot(owned.partition, held, hungry, slot.paused and not done)

    def _pause(self, decision: Decision) -> None:
        if decision.pause:
            self._source.pause(decision.pause)
        if decision.resume:
            self._source.resume(decision.resume)
        for partition in decision.pause | decision.resume:
            self._slots[partition].paused = partition in decision.pause

    def _shed_buffers(self, slots: Collection[_Slot]) -> None:
        """Drop buffered records not yet read; they are fetched again when there is room."""
        self._position_client(
            [slot for slot in slots if slot.owned.progress.buffer.shed(slot.generation)]
        )

    def _position_client(self, slots: Collection[_Slot]) -> None:
        """Position the client where the buffers want to read; paused partitions stay paused."""
        starts: dict[TopicPartition, int] = {}
        epochs: dict[TopicPartition, int] = {}
        paused = []
        for slot in slots:
            partition, buffer = slot.owned.partition, slot.owned.progress.buffer
            slot.generation, start, epoch = buffer.aim()
            complete = buffer.complete
            if not complete:
                starts[partition] = start
                if epoch is not None:
                    epochs[partition] = epoch
            if complete or slot.paused:
                paused.append(partition)
        if starts:
            self._source.seek(starts, epochs)
        if paused:
            self._source.pause(paused)

    def _look_at_watermarks(self) -> None:
        now = self._clock.monotonic()
        if now - self._watermarks_at < WATERMARK_INTERVAL:
            return
        self._watermarks_at = now
        for partition, slot in self._slots.items():
            end = self._source.high_watermark(partition)
            if end is not None:
                slot.owned.progress.note_end(end, self._clock.time())
