"""A task of a topology's channel: its operators' states, and a micro-batch on its way through."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import HeadraceError, PoisonRecordError, ReducerError
from headrace.core.letter_headers import Failure, Stage
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.letters import dead_letter
from headrace.extensions.streams.inline.batch import TopicRecords
from headrace.extensions.streams.inline.run import ChannelRun
from headrace.extensions.streams.inline.times import RowTimes
from headrace.extensions.streams.runtime.states import TaskStates
from headrace.extensions.streams.runtime.task_rows import TaskRows
from headrace.processors.task_merge import record_times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from headrace.core.call_watch import CallWatch
    from headrace.core.letter_headers import LetterHeaders
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.tables import OutputRow
    from headrace.extensions.streams.inline.batch import Written
    from headrace.extensions.streams.inline.stage import StageRows
    from headrace.extensions.streams.inline.tables import SourceTable
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.runtime.stores import Changes
    from headrace.extensions.streams.runtime.window_room import WindowRoom
    from headrace.processors.task_merge import Times

#: The time of a record that has none: before 1970, which is poison where it is asked for.
_NO_TIME = -1


@dataclass(frozen=True, slots=True)
class RejectRules:
    """The treatment of records that an operator fails on, and of late ones.

    ``failing`` is fail, skip or dead_letter, ``late`` skip or dead_letter.
    """

    letters: LetterHeaders
    failing: str = "fail"
    late: str = "skip"


class TaskRecords:
    """The records of a micro-batch that are of one task, in its order."""

    def __init__(self, number: int, table: pa.Table) -> None:
        """Read a table with the columns of every micro-batch, of one partition number."""
        self.number = number
        self._table = table.combine_chunks()
        micros = self._table.column("timestamp").cast(pa.int64())
        filled = pc.fill_null(micros, _NO_TIME).to_numpy()
        self.times = np.where(filled < 0, np.int64(_NO_TIME), filled // 1000)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def slice(self, start: int, size: int) -> pa.Table:
        """Return some of the records, with all of their columns."""
        return self._table.slice(start, size)

    def by_topic(self) -> dict[str, TopicRecords]:
        """Return the records of each topic, in columns."""
        topics = _column(self._table, "topic").dictionary_encode()
        keys, values = _column(self._table, "key"), _column(self._table, "value")
        codes = topics.indices.to_numpy()
        # a stage in workers is sent no offsets
        has_offsets = "offset" in self._table.column_names
        offsets = self._table.column("offset").to_numpy() if has_offsets else None
        found = {}
        for code, topic in enumerate(topics.dictionary.to_pylist()):
            at = np.flatnonzero(codes == code)
            places = pa.array(at)
            is_all = len(at) == len(codes)
            found[topic] = TopicRecords(
                topic,
                at,
                keys if is_all else keys.take(places),
                values if is_all else values.take(places),
                self.times[at],
                None if offsets is None else offsets[at],
            )
        return found

    @cached_property
    def _places(self) -> tuple[list[str], list[int]]:
        topics, offsets = (self._table.column(name).to_pylist() for name in ("topic", "offset"))
        return topics, offsets

    def place(self, at: int | None) -> str:
        """Return the words for one record, or for all of them."""
        topics, offsets = self._places
        if at is not None:
            return f"offset {offsets[at]} of {topics[at]}-{self.number}"
        found: dict[str, list[int]] = {}
        for topic, offset in zip(topics, offsets, strict=True):
            found.setdefault(topic, []).append(offset)
        return ", ".join(
            f"offsets {min(own)} to {max(own)} of {topic}-{self.number}"
            for topic, own in found.items()
        )

    def describe(self, at: int) -> dict[str, Any]:
        """Return one record with all of its columns."""
        (row,) = self._table.slice(at, 1).to_pylist()
        return dict(row)


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else column.combine_chunks()


def times_of_rows(plan: Plan, topics: Sequence[str]) -> Callable[[pa.Table], Times]:
    """Return what finds the times by which records of a part's topics are merged."""
    rows = RowTimes(plan, topics)
    if rows.are_all_own:
        return record_times

    def find(table: pa.Table) -> Times:
        found = record_times(table)
        for records in TaskRecords(0, table).by_topic().values():
            found[records.at] = rows.find(records)
        return found

    return find


class TaskCalls:
    """The calls of users' functions in a micro-batch of a task. A ``UserCalls``."""

    def __init__(self, records: TaskRecords, watch: CallWatch) -> None:
        self._records, self._watch = records, watch

    def job(self) -> AbstractContextManager[None]:
        return self._watch.job()

    def call(self, label: str, at: int | None) -> None:
        place = f"{label} of {self._records.place(at)}"
        if self._watch.has_hung(self._records.number, None, place):
            raise ReducerError(
                "the function does not return when it is called with it, or ends its process"
            )
        self._watch.call(self._records.number, None, place.encode())


class _Rejected:
    """The records of a micro-batch that are left out, with the reasons. A ``Poison``."""

    def __init__(self, records: TaskRecords, rules: RejectRules) -> None:
        self._records, self._rules = records, rules
        self.reasons: dict[int, str] = {}

    def note(self, at: int, reason: str) -> None:
        if self._rules.failing == "fail":
            record = self._records.describe(at)
            partition = TopicPartition(record["topic"], self._records.number)
            raise PoisonRecordError(partition, record["offset"], reason)
        self.reasons.setdefault(at, reason)

    def letters(self, late: Mapping[int, str]) -> list[OutputRow]:
        """Return the dead letters, those of late records last, each in the order of the records.

        There are none of those that are skipped.
        """
        rules = self._rules
        failed = self.reasons if rules.failing == "dead_letter" else {}
        overdue = late if rules.late == "dead_letter" else {}
        return [
            *(self._letter(at, text, "PoisonRecordError") for at, text in sorted(failed.items())),
            *(self._letter(at, text, "LateRecord") for at, text in sorted(overdue.items())),
        ]

    def _letter(self, at: int, reason: str, kind: str) -> OutputRow:
        record = self._records.describe(at)
        said = {
            "group": self._rules.letters.group,
            "topic": record["topic"],
            "partition": str(self._records.number),
            "offset": str(record["offset"]),
            "error": kind,
        }
        time = int(self._records.times[at])
        failure = Failure(reason, stage=Stage.PROCESS)
        return dead_letter(
            self._rules.letters,
            record["key"],
            record["value"],
            time,
            failure,
            said,
            record["headers"],
        )


@dataclass(slots=True)
class TaskResult:
    """The result of a micro-batch in a task.

    ``written`` are records by topic, ``rows`` the rows that changed. ``late`` and ``rejected``
    count records, ``counts`` are those of operators by their names. ``reason`` says why the first
    record was rejected, None where none was.
    """

    written: Sequence[tuple[str, Written]]
    letters: Sequence[OutputRow]
    rows: Changes
    late: int
    rejected: int
    counts: Mapping[str, Mapping[str, int]]
    reason: str | None


class Task:
    """A channel's operators in one partition number, with their states. One thread at a time.

    ``last_layer`` names the layer of rows that the states are of: with another one they are read
    again.
    """

    def __init__(  # noqa: PLR0917 - what operators run on
        self,
        plan: Plan,
        channel: Channel,
        state: LayeredState,
        number: int,
        room: WindowRoom,
        watch: CallWatch | None = None,
        shared: Mapping[int, SourceTable] | None = None,
    ) -> None:
        """Read the rows of all operators, with all that is staged.

        Raises:
            StateStoreError: they cannot be read.
        """
        self.last_layer: str | None = None
        self._plan, self._channel, self._watch = plan, channel, watch
        self._states = TaskStates(plan, channel, TaskRows(state, number), room, shared)

    def merge_groups(self, staged: StageRows) -> list[int]:
        """Merge groups that were made in workers with what is stored, before any operator runs.

        Return the aggregates that need rows in their place, by their places; then nothing was done.

        Raises:
            StateStoreError: rows cannot be read.
        """
        refused = []
        for place, chunks in staged.groups.items():
            merged = self._states.by_place[place].merge(chunks)
            if merged is None:
                refused.append(place)
            else:
                staged.merged[place] = merged
        return refused

    def process(
        self,
        records: TaskRecords,
        rules: RejectRules,
        max_row: int,
        staged: StageRows | None = None,
    ) -> TaskResult:
        """Run records through the operators, and return what came of them.

        Those of a stage that was run before are not run again.

        Raises:
            PoisonRecordError: a record cannot be processed, and the rules say ``fail``.
            JobTimeoutError: a user's function does not return.
            StateStoreError: rows cannot be read.
            HeadraceError: a row is too large.
        """
        rejected = _Rejected(records, rules)
        states = self._states.by_place
        calls = None if self._watch is None else TaskCalls(records, self._watch)
        run = ChannelRun(
            self._plan,
            self._channel,
            states,
            records.by_topic(),
            rejected,
            calls,
            staged,
            self._states.answering,
        )
        run.process()
        late = self._states.late()
        letters = rejected.letters(late)
        rows = self._states.take_changes()
        _require_small(rows, max_row)
        return TaskResult(
            run.written,
            letters,
            rows,
            len(late),
            len(rejected.reasons),
            run.counts.by_name(),
            next(iter(rejected.reasons.values()), None),
        )


def _require_small(rows: Changes, max_row: int) -> None:
    """Return if no row has more bytes than one may have, with its key."""
    sizes = pc.add(pc.binary_length(rows.keys), pc.binary_length(rows.values))
    largest = pc.max(sizes).as_py() or 0
    if largest > max_row:
        key = rows.keys[pc.index(sizes, largest).as_py()].as_py()
        raise HeadraceError(
            f"the row {key.decode(errors='replace')!r} has {largest} bytes, "
            f"and state.max_row is {max_row}; lower the limit of what the operator "
            "collects, or raise state.max_row and the changelog's max.message.bytes"
        )
