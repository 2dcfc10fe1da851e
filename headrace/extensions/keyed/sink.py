"""The sink of a channel with state: outputs, states and the offset in one transaction."""

from __future__ import annotations

import json
import operator
from collections import Counter
from dataclasses import astuple, dataclass, field, replace
from itertools import chain
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import ResultRecord, TopicPartition
from headrace.core.result_columns import ResultColumns
from headrace.core.spans import current_headers
from headrace.extensions.keyed.changed_rows import AFTER, FORMER, ChangedRows, columns_of
from headrace.extensions.keyed.changelog import changelog_columns
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.state import Layer, Progress
from headrace.extensions.keyed.store import Position
from headrace.extensions.keyed.tables import OUTPUT, named_tuples
from headrace.extensions.keyed.topics import Changelog, lost_rows, truncated_rows
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.result_transactions import CountedMove
from headrace.sinks.contract import Guarantee, Sink
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.kafka import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from headrace.core.clock import Clock
    from headrace.core.errors import SinkConflictError
    from headrace.core.result_columns import Results
    from headrace.extensions.keyed.first_records import FirstRecords
    from headrace.extensions.keyed.state import LayeredState
    from headrace.kafka.ports import ChangelogMark, StoredOffset
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch

#: Seconds in which the brokers have to say where one partition ends: commits wait meanwhile.
_END_TIMEOUT = 1.0


class Transactions(Protocol):
    """A producer of records that keeps offsets, as ``headrace.kafka.ResultTransactions``."""

    def require(self, topic: str) -> int | None:
        """Return how many partitions a topic has; a StartError says that it does not exist."""
        ...

    def stored_entry(self, identity: str) -> StoredOffset | None:
        """Return what is stored for a partition, once no transaction has it in doubt."""
        ...

    def last_entries(
        self, identities: Collection[str], deadline: Deadline
    ) -> Mapping[str, StoredOffset]:
        """Return what was committed last of partitions of a topic; what has nothing is missing."""
        ...

    def commit(
        self, moves: Sequence[CountedMove], records: Results = ()
    ) -> list[SinkConflictError]:
        """Produce and move, both or neither; return the conflicts for which nothing was done."""
        ...

    def close(self) -> None:
        """Release the clients."""
        ...


class Ends(Protocol):
    """A source of the ends of a topic's partitions, as ``headrace.kafka.KafkaTopicCatalog``."""

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return the first offset and the end of a partition."""
        ...

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        """Return the leader epoch of a partition's last record, None where it is not known."""
        ...

    def truncated_at(
        self, partition: TopicPartition, position: int, epoch: int, deadline: Deadline
    ) -> tuple[bool, int | None]:
        """Return whether a log does not lead to where it led under a leader epoch; its end."""
        ...


@dataclass(frozen=True, slots=True)
class KeyedCounts:
    """The counts of the fold over some micro-batches."""

    touched: int = 0
    changed: int = 0
    fired: int = 0
    late: int = 0
    dropped: int = 0
    rejected: int = 0
    expired: int = 0
    outputs: int = 0

    def plus(self, other: KeyedCounts) -> KeyedCounts:
        """Return the sums of both."""
        return KeyedCounts(*map(operator.add, astuple(self), astuple(other)))


class OutputColumns:
    """The outputs of a micro-batch, as columns: a record is made when it is asked for.

    There may be as many as records, and the objects would live until the commit. ``partitions``
    says of topics into how many partitions each record goes, all of them.
    """

    def __init__(
        self,
        chunks: Sequence[pa.StructArray] = (),
        topic_of: Callable[[str], str] = str,
        partitions: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._chunks = chunks
        self._topic_of = topic_of
        self._partitions = partitions

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[ResultRecord]:
        for chunk in self._chunks:
            columns = (chunk.field(name).to_pylist() for name in OUTPUT.names)
            for to, key, value, ts, headers in zip(*columns, strict=True):
                named = None if not headers else [(each["key"], each["value"]) for each in headers]
                topic = self._topic_of(to)
                for number in self._numbers(topic):
                    yield ResultRecord(topic, value, key, named, number, ts)

    def by_topic(self) -> Iterator[ResultColumns]:
        """Yield them in columns, those of each topic in their order."""
        for chunk in self._chunks:
            encoded = chunk.field("to").dictionary_encode()
            topics = list(map(self._topic_of, encoded.dictionary.to_pylist()))
            for topic in dict.fromkeys(topics):
                numbers = [at for at, each in enumerate(topics) if each == topic]
                is_own = pc.is_in(encoded.indices, pa.array(numbers, encoded.indices.type))
                own = chunk if len(numbers) == len(topics) else chunk.filter(is_own)
                key, value, ts, headers = map(own.field, ("key", "value", "ts", "headers"))
                for number in self._numbers(topic):
                    every = None if number is None else pa.array([number] * len(own), pa.int32())
                    yield ResultColumns(topic, key, value, headers, every, ts)

    def _numbers(self, topic: str) -> Sequence[int | None]:
        """Return the partitions that each record of a topic goes to, None for that of its key."""
        count = self._partitions.get(topic)
        return (None,) if count is None else range(count)


@dataclass(frozen=True, slots=True)
class StagedState:
    """A micro-batch that is folded: its layer, and what is to be produced.

    ``named`` are counts of the function's own parts, as of a topology's operators.
    """

    layer: Layer
    outputs: OutputColumns = field(default_factory=OutputColumns)
    counts: KeyedCounts = field(default_factory=KeyedCounts)
    named: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkTopics:
    """The topics a channel with state writes to. ``outputs`` has one for each output's name.

    Of those in ``everywhere`` each partition gets each record.
    """

    changelog: str
    outputs: Mapping[str, str]
    everywhere: frozenset[str] = frozenset()


def staged_state(
    micro_batch: MicroBatch,
    result: pa.Table | None,
    state: LayeredState,
    topic_of: Callable[[str], str],
    partitions: Mapping[str, int] = MappingProxyType({}),
) -> StagedState:
    """Return what is to be committed of a folded micro-batch. Blocks for reads of former rows.

    ``partitions`` says of topics into how many partitions each record goes, all of them.
    """
    known = {part.partition: state.time(part.partition) for part in micro_batch.ranges}
    reached = {} if result is None else times_in(result)
    times = {
        number: time
        for number, before in known.items()
        if (time := reached.get(number, before)) is not None
    }
    if result is None:
        return StagedState(Layer(micro_batch.id, times=times))
    chunks = pc.list_flatten(result.column("outputs")).chunks
    outputs = OutputColumns(chunks, topic_of, partitions)
    sums = {name: pc.sum(result.column(name)).as_py() or 0 for name in _COUNTED}
    changes = _changes(result.filter(result.column("changed")), state)
    counts = KeyedCounts(result.num_rows, len(changes), outputs=len(outputs), **sums)
    layer = Layer(micro_batch.id, changes, times)
    return StagedState(layer, outputs, counts, counts_in(result))


def _changes(rows: pa.Table, state: LayeredState) -> ChangedRows:
    """Return the rows that changed, with those before them: read, where the table has none."""
    if FORMER[0] in rows.column_names:
        return ChangedRows(rows)
    places = zip(rows.column("partition").to_pylist(), rows.column("key").to_pylist(), strict=True)
    before = state.get_many(named_tuples(PartitionKey, places))
    for name, column in zip(FORMER, columns_of(before), strict=True):
        rows = rows.append_column(name, column)
    return ChangedRows(rows)


class KeyedSink(Sink[StagedState]):
    """Commits folded micro-batches; see docs/keyed.md. A ``Sink`` that takes several at once.

    The stream times that a micro-batch comes to are in the metadata of its result. ``first`` looks
    whether any record was reduced.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        transactions: Transactions,
        state: LayeredState,
        topics: SinkTopics,
        clock: Clock,
        first: FirstRecords | None = None,
    ) -> None:
        self._first = first
        self._transactions = transactions
        self._state = state
        self._topics = topics
        self._clock = clock
        self._lock = Lock()
        self._touched: set[int] = set()
        #: Of topics of which each partition gets each record, how many there are.
        self._partitions: dict[str, int] = {}
        self._marks: dict[int, ChangelogMark | None] = {}
        #: Called before each commit, on the thread that commits and once all of its records are
        #: read: what it raises comes in place of the commit.
        self.require: Callable[[], None] = lambda: None
        #: What was done in all that was committed. Any thread may read it.
        self.totals = KeyedCounts()
        #: The same of the function's own parts, by their names. Any thread may read it.
        self.named_totals: Mapping[str, Mapping[str, int]] = {}

    @property
    def changelog(self) -> str:
        """Return the topic of the changed rows."""
        return self._topics.changelog

    def counts(self) -> KeyedCounts:
        """Return what was done in all that was committed. Any thread."""
        return self.totals

    def open(self) -> None:
        """Check that the topics exist.

        Raises:
            StartError: one does not exist, or no broker answers.
        """
        for topic in sorted({self._topics.changelog, *self._topics.outputs.values()}):
            count = self._transactions.require(topic)
            if topic in self._topics.everywhere and count is not None:
                self._partitions[topic] = count

    def stored_offset(self, identity: str) -> int | None:
        """Return the offset that goes with the state, and start a task of it alone. Blocks."""
        return self.begin([identity]).get(identity)

    def begin(self, identities: Collection[str]) -> Mapping[str, int]:
        """Start a task with the offsets that go with its state, and return these. Blocks.

        ``identities`` are of its partitions, one of each topic. One that missed commits, or has no
        offset yet, has them counted as the others do from the next one on. Waits for a
        commit that is under way, which makes what was read before it obsolete.
        """
        (number,) = {int(identity.rpartition("/")[2]) for identity in identities}
        with self._lock:
            found = {each: self._transactions.stored_entry(each) for each in identities}
            stored = {each: entry for each, entry in found.items() if entry is not None}
            counts = {each: entry.commits or 0 for each, entry in stored.items()}
            last = max(stored, key=counts.__getitem__, default=None)
            self._marks[number] = None if last is None else stored[last].changelog
            offsets = {each: entry.offset for each, entry in stored.items()}
            if last is None:
                self._state.begin(number, Progress())
                return offsets
            most = counts[last]
            fewer = {each: count for each, count in counts.items() if count < most}
            self._state.begin(number, Progress(offsets, most, stored[last].stream_time, fewer))
            return offsets

    def last_stored(
        self, identities: Collection[str], deadline: Deadline
    ) -> Mapping[str, StoredOffset]:
        """Return what was committed last of partitions, whatever is under way. Blocks.

        Raises:
            KafkaUnavailableError: the brokers did not answer.
        """
        return self._transactions.last_entries(identities, deadline)

    def mark(self, partition: int) -> ChangelogMark | None:
        """Return what was stored last of where the state of a partition is, None: it was not said.

        Any thread; as of the last :meth:`stored_offset`, and of commits since then.
        """
        return self._marks.get(partition)

    def set_mark(self, partition: int, mark: ChangelogMark) -> None:
        """Set the mark that commits of a partition carry. Any thread."""
        self._marks[partition] = mark

    def set_end(self, partition: int, at: Position) -> None:
        """Set where rows ended that were committed, for the next commit to say. Any thread."""
        if (mark := self._marks.get(partition)) is not None:
            changed = replace(mark, end=at.offset, leader_epoch=at.leader_epoch)
            self._marks[partition] = changed

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return what was stored with the offset, in the same commit."""
        stored = self._transactions.stored_entry(identity)
        return None if stored is None else stored.leader_epoch

    @override
    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedState:
        """Stage the changed rows, which later stages see. Blocks for reads of the former ones.

        ``result`` is what a ``KeyedFunction`` returns; None changes nothing.
        """
        assert result is None or isinstance(result, pa.Table), "a fold returns a table"
        topics = self._topics.outputs.__getitem__
        staged = staged_state(micro_batch, result, self._state, topics, self._partitions)
        self._state.stage(staged.layer)
        if result is not None and self._first is not None:
            self._first.note(micro_batch, result)
        return staged

    def commit(self, staged: StagedState, offsets: Sequence[PartitionCommit]) -> None:
        """Commit one; see :meth:`commit_all`."""
        self.commit_all([staged], offsets)

    def commit_all(self, staged: Sequence[StagedState], offsets: Sequence[PartitionCommit]) -> None:
        """Commit several; see :meth:`commit_with`."""
        self.commit_with(staged, offsets, ())

    def commit_with(
        self,
        staged: Sequence[StagedState],
        offsets: Sequence[PartitionCommit],
        records: Sequence[ResultRecord],
    ) -> None:
        """Produce outputs and changelog rows, and commit offsets, in one transaction; then write.

        ``records`` are others, for the same transaction.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            FencedError: a new owner shut this member's producer out.
            RowsRefusedError: a record is too large.
            HeadraceError: nothing was stored as far as can be told; or the store could not be
                written for so long that no more is committed.
        """
        layers = [each.layer for each in staged]
        self.require()
        with self._lock:
            if self._state.unwritten.is_over() and not self._state.flush():
                raise HeadraceError(
                    f"the state store has not taken {self._state.unwritten.entries} rows and "
                    f"timers that are committed: {self._state.problem}. It goes on once they are "
                    "written"
                )
            times = {number: time for layer in layers for number, time in layer.times.items()}
            changed = {number for layer in layers for number in layer.changes.partitions}
            moves = [self._counted_move(share, times, changed) for share in offsets]
            # what fails here may be stored all the same: then the changelog has rows that the
            # store has not, and no position is noted before a commit has gone on from ours
            numbers = {move.partition.partition for move in moves}
            were_touched = self._touched & numbers
            self._touched -= numbers
            conflicts = self._transactions.commit(moves, self._records(staged, records))
            if conflicts:
                # nothing was stored; but of these the changelog has rows of another writer
                others = {conflict.partition.partition for conflict in conflicts}
                self._touched |= were_touched - others
                raise CommitConflictError(conflicts)
            self._state.apply(layers, self._progress_after(moves))
            self._touched |= numbers
            self._marks.update({move.partition.partition: move.changelog for move in moves})
            for each in staged:
                self.totals = self.totals.plus(each.counts)
                self.named_totals = _added(self.named_totals, each.named)

    def _progress_after(self, moves: Sequence[CountedMove]) -> Mapping[int, Progress]:
        """Return where tasks are once their partitions have moved."""
        found: dict[int, Progress] = {}
        for move in moves:
            number = move.partition.partition
            before = found.get(number) or self._state.progress(number)
            moved = move.identity, move.next_offset, move.next_commits, move.stream_time
            found[number] = before.moved(*moved)
        return found

    def clear_index(self) -> None:
        """Remove timers that no row has from the store's index, unless a commit is under way.

        Raises:
            StateStoreError: the store cannot be read or written.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._state.clear_index()
            finally:
                self._lock.release()

    def _counted_move(
        self, share: PartitionCommit, times: Mapping[int, int], changed: set[int]
    ) -> CountedMove:
        number = share.partition.partition
        progress, mark = self._state.progress(number), self._marks.get(number)
        if mark is not None and number in changed:
            mark = replace(mark, has_rows=True)
        return CountedMove(
            share.identity,
            share.partition,
            share.start,
            share.next_offset,
            share.transactional_id,
            share.leader_epoch,
            progress.number_of(share.identity),
            times.get(number, progress.time),
            mark,
            progress.number + 1,
        )

    def _records(self, staged: Sequence[StagedState], others: Sequence[ResultRecord]) -> Results:
        """Return the last row of each changed key, then the outputs in the order of each topic."""
        rows = self._changelog_rows(staged)
        if current_headers():
            return chain(rows, traced(chain(*(each.outputs for each in staged), others)))
        return chain(rows, *(each.outputs.by_topic() for each in staged), others)

    def _changelog_rows(self, staged: Sequence[StagedState]) -> Iterator[ResultColumns]:
        """Yield the changelog rows that a commit writes: the last one of each changed key."""
        for at, each in enumerate(staged, 1):
            later = [other.layer.changes for other in staged[at:] if other.layer.changes]
            changes = each.layer.changes.without(later)
            if changes:
                yield changelog_columns(self._topics.changelog, changes.columns)

    def discard(self, staged: StagedState) -> None:
        """Drop the layer."""
        self._state.drop(staged.layer.name)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:  # noqa: ARG002
        """Refuse: state and offset belong together.

        Raises:
            HeadraceError: always.
        """
        named = ", ".join(str(move.partition) for move in moves)
        raise HeadraceError(
            f"{named}: the offset of a channel with state cannot be moved, because its state is of "
            "exactly the records before it; headrace state forget begins again, and import goes on "
            "elsewhere"
        )

    def checkpoint(
        self, topic_id: str, ends: Ends, deadline: Deadline, is_ours: Callable[[int], bool]
    ) -> dict[int, str]:
        """Store how far the store follows the changelog, of what was committed since. Blocks.

        No transaction is under way meanwhile, so that the store has all that is before the ends,
        once it is flushed; but for partitions that are no longer ours, where the ends may be
        another owner's.
        ``is_ours`` is asked once the ends are known. What is lost of a changelog is returned, by
        partition; nothing is noted of these.

        Raises:
            HeadraceError: a transaction is under way for as long.
            KafkaUnavailableError: no answer of some, one without a leader for instance; the others
                are noted.
            StateStoreError: the store could not be written.
        """
        if not self._lock.acquire(timeout=deadline.left):
            raise HeadraceError("a transaction is under way; the next time it is noted")
        try:
            if not self._state.flush():
                return {}
            positions: dict[int, Position] = {}
            lost: dict[int, str] = {}
            missing: list[KafkaUnavailableError] = []
            for number in sorted(self._touched):
                try:
                    found = self._look_at(number, topic_id, ends, deadline)
                except KafkaUnavailableError as error:
                    missing.append(error)
                    continue
                if isinstance(found, str):
                    lost[number] = found
                else:
                    positions[number] = found
            ours = {number: at for number, at in positions.items() if is_ours(number)}
            self._state.checkpoint(ours)
            for number, at in ours.items():
                # the next commit says it, for an owner that has no store of this
                self.set_end(number, at)
            self._touched.difference_update(positions)
            if missing and not lost:
                raise missing[0]
            return lost
        finally:
            self._lock.release()

    def find_lost(self, number: int, topic_id: str, ends: Ends, deadline: Deadline) -> str | None:
        """Return what is lost of the changelog of a partition to which nothing is committed.

        Commits go on meanwhile. Blocks.

        Raises:
            KafkaUnavailableError: no answer.
        """
        found = self._look_at(number, topic_id, ends, deadline)
        return found if isinstance(found, str) else None

    def _look_at(
        self, number: int, topic_id: str, ends: Ends, deadline: Deadline
    ) -> Position | str:
        """Return where the changelog of a partition ends, or what is lost of it."""
        partition = TopicPartition(self._topics.changelog, number)
        patience = Deadline.after(deadline.at_most(_END_TIMEOUT), self._clock)
        # before the end, so that it is no later one than the end's
        epoch = _leader_epoch(ends, partition, patience)
        bounds = ends.watermarks(partition, patience)
        mark = self._marks.get(number)
        if mark is not None:
            changelog = Changelog(partition.topic, topic_id, 0.0)
            # readers see the end of a transaction a moment after it was committed: that there is
            # nothing says nothing yet
            seen = replace(mark, has_rows=False)
            if reason := lost_rows(changelog, number, seen, None, bounds):
                return reason
            end, former = mark.end, mark.leader_epoch
            # what a new leader did not have is gone, however long its log is by now
            if (
                end is not None
                and former is not None
                and epoch not in {None, former}
                and ends.truncated_at(partition, end, former, patience)[0]
            ):
                return truncated_rows(changelog, number, end)
        return Position(topic_id, bounds[1], self._clock.time(), epoch)

    def close(self) -> None:
        """Close the clients."""
        self._transactions.close()


def _added(
    totals: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, int]]
) -> Mapping[str, Mapping[str, int]]:
    """Return the sums of counts by name; those that there are stay as they are."""
    if not more:
        return totals
    sums = {name: Counter(totals.get(name, {})) for name in more}
    for name, counts in more.items():
        sums[name].update(counts)
    return {**totals, **sums}


def _leader_epoch(ends: Ends, partition: TopicPartition, deadline: Deadline) -> int | None:
    """Return an epoch to go with a position, None where the leader does not say: it is a help."""
    try:
        return ends.leader_epoch(partition, deadline)
    except KafkaUnavailableError:
        return None


_COUNTED = ("fired", "late", "dropped", "rejected", "expired")

_TIMES = b"headrace.times"

_NAMED = b"headrace.counts"


def with_times(result: pa.Table, times: Mapping[int, int]) -> pa.Table:
    """Return a result that says which stream time its partitions came to."""
    text = ",".join(f"{number}:{time}" for number, time in times.items())
    return result.replace_schema_metadata({_TIMES: text.encode()})


def with_counts(result: pa.Table, counts: Mapping[str, Mapping[str, int]]) -> pa.Table:
    """Return a result that says what was counted of the function's own parts, by their names."""
    if not counts:
        return result
    noted = {**(result.schema.metadata or {}), _NAMED: json.dumps(counts).encode()}
    return result.replace_schema_metadata(noted)


def counts_in(result: pa.Table) -> dict[str, dict[str, int]]:
    """Return what :func:`with_counts` put there."""
    found: dict[str, dict[str, int]] = json.loads((result.schema.metadata or {}).get(_NAMED, "{}"))
    return found


def times_in(result: pa.Table) -> dict[int, int]:
    """Return what :func:`with_times` put there."""
    text = (result.schema.metadata or {}).get(_TIMES, b"").decode()
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return {int(number): int(time) for number, _, time in pairs}


def with_former(result: pa.Table, rows: pa.Table) -> pa.Table:
    """Return a result with the rows that it was folded from, which begin with the same keys.

    Rows without a key may follow in the result.
    """
    others = result.num_rows - rows.num_rows
    for name, column in zip(FORMER, AFTER, strict=True):
        nothing = pa.nulls(others, pa.binary())
        former = pa.chunked_array([*rows.column(column).chunks, nothing], pa.binary())
        result = result.append_column(name, former)
    return result
