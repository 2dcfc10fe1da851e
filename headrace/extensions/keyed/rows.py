"""From records in columns to one row a touched key, without a loop per record."""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import OUR_HEADERS, Failure, LetterHeaders, Stage, shortened
from headrace.core.records import FINISHED_KEY, TopicPartition
from headrace.core.user_text import describe_error, plain_error
from headrace.extensions.keyed.codecs import field_of, from_json
from headrace.extensions.keyed.letters import dead_letter
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.tables import (
    FACT,
    MAX_TIME,
    OUTPUT,
    RESULT,
    ROWS,
    OutputRow,
    named_tuples,
)
from headrace.processors.task_merge import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.keyed.state import LayeredState
    from headrace.sinks.micro_batch import MicroBatch

#: Timers that a micro-batch fires for keys without records in it: the others come in the next one.
MAX_DUE_KEYS = 100_000

_NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class RowSettings:
    """The settings by which records are grouped.

    ``key`` is ``record``, ``partition`` or ``constant``; ``time`` makes the time of a record, in
    milliseconds, of its value's bytes, None for the record's own. ``letters`` says what headers
    dead letters have. With ``calls`` each call of ``time`` is noted there, and interrupted where it
    takes too long. ``extend`` is given the records, and what returns the rows of a partition by
    their keys; it returns the records with others added, of partitions that there are.
    """

    key: str = "record"
    time: Callable[[bytes | None], Any] | None = None
    undecodable: str = "fail"
    letters: LetterHeaders = OUR_HEADERS
    calls: CallWatch | None = None
    extend: Callable[[pa.Table, Callable[[int], Mapping[bytes, KeyRow]]], pa.Table] | None = None


@dataclass(frozen=True, slots=True)
class Ungrouped:
    """A record that cannot be grouped, and why; ``letter`` is None where it is left out."""

    reason: str
    letter: OutputRow | None = None


@dataclass(frozen=True, slots=True)
class Grouped:
    """A micro-batch as the fold takes it.

    ``rows`` is a table of :data:`ROWS`, ``times`` the stream time that each partition comes to.
    ``undecodable`` has what cannot be grouped, by partition.
    """

    rows: pa.Table
    times: Mapping[int, int]
    undecodable: Mapping[int, Sequence[Ungrouped]]


def extension_of(reducer: Any) -> Any:
    """Return what a reducer of Headrace's own adds records by, None of any other reducer.

    Its name is one that no reducer of a user has by chance.
    """
    return getattr(reducer, "headrace_extend", None)


def grouped(
    table: pa.Table, micro_batch: MicroBatch, state: LayeredState, settings: RowSettings, now: int
) -> Grouped:
    """Return the keys that a micro-batch touches, with their facts and their state. Blocks.

    ``table`` has the records with the columns of :data:`headrace.core.tables.SCHEMA`; within a
    partition in the order of their offsets. ``now`` is in milliseconds.

    Raises:
        PoisonRecordError: a record has no key or no time, and ``undecodable`` is ``fail``.
        StateStoreError: the state cannot be read.
    """
    if settings.extend is not None:
        table = without_finishing(table)
        table = settings.extend(table, lambda partition: state.rows_of(partition, b""))
    records = _Records(table, settings)
    undecodable = records.undecodable()
    times, running, late_by = records.times(state)
    for part in micro_batch.ranges:
        known = state.time(part.partition)
        # taken in any case: it must not be there for a later tick, of a partition less quiet
        wanted = state.take_wanted_time(part.partition)
        quiet = wanted if part.records == 0 else None
        if part.partition not in times and known is not None:
            times[part.partition] = known if quiet is None else max(known, quiet)
    touched, ends, facts = records.facts(running, late_by)
    due = _due_keys(micro_batch, state, times, touched, now)
    return Grouped(_rows(touched, due, ends, facts, times, state, now), times, undecodable)


_NO_KEY = Failure("the record has no key", stage=Stage.KEY, code=grouped)
_NO_RECORD_TIME = Failure(
    "the record has no time, or one before 1970", stage=Stage.KEY, code=grouped
)


def without_finishing(table: pa.Table) -> pa.Table:
    """Return the records without the empty ones by which transactions were finished."""
    values = table.column("value")
    if values.null_count == 0:
        return table
    keys = pc.starts_with(table.column("key"), FINISHED_KEY)
    finishing = pc.and_(values.is_null(), pc.fill_null(keys, False))
    return table.filter(pc.invert(finishing))


class _Records:
    """A micro-batch's records, without those that cannot be grouped."""

    def __init__(self, table: pa.Table, settings: RowSettings) -> None:
        self._settings = settings
        table = self._table = without_finishing(table).combine_chunks()
        self._reasons: dict[int, Failure] = {}
        keys = self._keys()
        ts = self._own_times()
        usable = np.ones(table.num_rows, dtype=bool)
        if settings.key == "record":
            for index in np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)):
                self._reasons.setdefault(int(index), _NO_KEY)
        for index in np.flatnonzero(ts < 0):
            self._reasons.setdefault(int(index), _NO_RECORD_TIME)
        usable[list(self._reasons)] = False
        self._usable = usable
        self._ts = ts
        self._partitions = self._column("partition").to_numpy(zero_copy_only=False)
        encoded = keys.dictionary_encode()
        self._names = encoded.dictionary
        self._codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)

    def _column(self, name: str) -> pa.Array:
        column = self._table.column(name)
        return column.chunk(0) if column.num_chunks else column.combine_chunks()

    def _keys(self) -> pa.Array:
        match self._settings.key:
            case "record":
                return self._column("key")
            case "partition":
                return self._column("partition").cast(pa.string()).cast(pa.binary())
            case _:
                return pa.array([b""] * self._table.num_rows, pa.binary())

    def _own_times(self) -> npt.NDArray[np.int64]:
        if self._settings.time is None:
            micros = self._column("timestamp").cast(pa.int64()).fill_null(_NO_TIME)
            found: npt.NDArray[np.int64] = micros.to_numpy(zero_copy_only=False)
            return np.where(found == _NO_TIME, np.int64(-1), found // 1000)
        found = np.full(self._table.num_rows, -1, dtype=np.int64)
        time, calls = self._settings.time, self._settings.calls
        values: Iterable[tuple[int, Any]] = enumerate(self._column("value").to_pylist())
        with nullcontext() if calls is None else calls.job():
            for index, value in values if calls is None else self._each_noted(values, calls):
                try:
                    found[index] = _whole(time(value))
                except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function, or one value
                    message = f"it has no time: {describe_error(error)}"
                    self._reasons[index] = Failure(message, plain_error(error), Stage.KEY, time)
        return found

    def _each_noted(
        self, values: Iterable[tuple[int, Any]], calls: CallWatch
    ) -> Iterator[tuple[int, Any]]:
        """Yield values, each once it is noted as a call; without those that calls hung for."""
        columns = [self._column(name).to_pylist() for name in ("topic", "partition", "offset")]
        for (index, value), topic, partition, offset in zip(values, *columns, strict=True):
            place = f"the time of offset {offset} of {topic}-{partition}"
            if calls.has_hung(partition, None, place):
                message = (
                    "it has no time: the function does not return when it is called with it, or "
                    "ends its process"
                )
                self._reasons[index] = Failure(message, stage=Stage.KEY, code=self._settings.time)
                continue
            calls.call(partition, None, place.encode())
            yield index, value

    def undecodable(self) -> dict[int, list[Ungrouped]]:
        """Return what cannot be grouped, by partition."""
        found: dict[int, list[Ungrouped]] = {}
        for index, failure in sorted(self._reasons.items()):
            record = self._table.slice(index, 1).to_pylist()[0]
            partition = record["partition"]
            if self._settings.undecodable == "fail":
                source = TopicPartition(record["topic"], partition)
                raise PoisonRecordError(source, record["offset"], failure.message)
            if self._settings.undecodable == "skip":
                found.setdefault(partition, []).append(Ungrouped(failure.message))
                continue
            said = {
                "topic": record["topic"],
                "partition": str(partition),
                "offset": str(record["offset"]),
            }
            letter = dead_letter(
                self._settings.letters,
                record["key"],
                record["value"],
                int(self._ts[index]),
                failure,
                said,
                record["headers"],
            )
            found.setdefault(partition, []).append(Ungrouped(failure.message, letter))
        return found

    def times(
        self, state: LayeredState
    ) -> tuple[dict[int, int], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return each partition's last stream time, that at each record, and how late each is."""
        running = self._ts.copy()
        late_by = np.zeros_like(running)
        ends: dict[int, int] = {}
        for partition in np.unique(self._partitions[self._usable]).tolist():
            at = np.flatnonzero((self._partitions == partition) & self._usable)
            own = self._ts[at]
            before = state.time(partition)
            first = own[0] if before is None else np.int64(before)
            reached = np.maximum.accumulate(np.concatenate([[first], own]))
            running[at] = reached[1:]
            late_by[at] = np.maximum(0, reached[:-1] - own)
            ends[partition] = int(reached[-1])
        return ends, running, late_by

    def facts(
        self, running: npt.NDArray[np.int64], late_by: npt.NDArray[np.int64]
    ) -> tuple[list[PartitionKey], list[int], pa.Array]:
        """Return the touched keys, where the facts of each end, and the facts: key after key.

        The keys are by partition, and there as they came.
        """
        codes = self._partitions.astype(np.int64) * max(1, len(self._names)) + self._codes
        order = _stable_order(codes)
        if self._reasons:
            order = order[self._usable[order]]
        codes = codes[order]
        starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else codes
        ends = [*starts[1:].tolist(), len(codes)] if len(codes) else []
        partitions, numbers = np.divmod(codes[starts], max(1, len(self._names)))
        names = self._names.take(pa.array(numbers)).to_pylist()
        touched = named_tuples(PartitionKey, zip(partitions.tolist(), names, strict=True))
        places = pa.array(order, pa.int64())
        columns = {
            "source": _take_values(self._column("topic"), places),
            "offset": _take_values(self._column("offset"), places),
            "ts": pa.array(self._ts[order], pa.int64()),
            "time": pa.array(running[order], pa.int64()),
            "late_by": pa.array(late_by[order], pa.int64()),
            "value": _take_values(self._column("value"), places),
            "headers": _take_values(self._column("headers"), places),
        }
        arrays = [columns[field.name].cast(field.type) for field in FACT]
        return touched, ends, pa.StructArray.from_arrays(arrays, fields=list(FACT))


def time_of_field(path: str) -> Callable[[bytes | None], Any]:
    """Return what finds a record's time in its JSON value, by a path such as ``value.at``."""
    steps = path.split(".")[1:]
    return lambda value: field_of(None if value is None else from_json(value), steps)


def field_times(path: str) -> Callable[[pa.Table], npt.NDArray[np.int64]]:
    """Return what finds the times of a table's records in their JSON values, in milliseconds.

    A record without one comes right after the record before it.
    """
    time = time_of_field(path)

    def find(table: pa.Table) -> npt.NDArray[np.int64]:
        found = np.full(table.num_rows, NEVER, dtype=np.int64)
        for index, value in enumerate(table.column("value").to_pylist()):
            # what is wrong with it is said where it is reduced
            with suppress(Exception):
                found[index] = _whole(time(value))
        return found

    return find


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number of milliseconds")
    if abs(value) > MAX_TIME:
        raise ValueError(f"{value!r} milliseconds are too far off")
    return int(value)


def _stable_order(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return what sorts codes and leaves equal ones in their order.

    From the lowest 16 bits up: numbers of 16 bits are sorted by their digits, without comparing.
    """
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    for shift in range(16, int(codes.max(initial=0)).bit_length(), 16):
        digits = (codes[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


def _take_values(column: pa.Array, places: pa.Array) -> pa.Array:
    """Return values of a column; of nothing but nulls, as headers often are, there is no choice."""
    if column.null_count == len(column):
        return pa.nulls(len(places), column.type)
    return column.take(places)


def _due_keys(
    micro_batch: MicroBatch,
    state: LayeredState,
    times: Mapping[int, int],
    touched: Sequence[PartitionKey],
    now: int,
) -> list[PartitionKey]:
    """Return the keys without records that have a timer that is due.

    ``touched`` are those with records, by partition.
    """
    found: list[PartitionKey] = []
    # of a task each topic has a range
    for number in dict.fromkeys(part.partition for part in micro_batch.ranges):
        start, end = (side(touched, number, key=itemgetter(0)) for side in (bisect_left, bisect))
        keys = state.due_keys(
            number,
            times.get(number),
            now,
            besides={key for _, key in touched[start:end]},
            most=MAX_DUE_KEYS - len(found),
        )
        found += [PartitionKey(number, key) for key in keys]
    return found


def _rows(  # noqa: PLR0917 - the columns of the table
    touched: Sequence[PartitionKey],
    due: Sequence[PartitionKey],
    ends: Sequence[int],
    facts: pa.Array,
    times: Mapping[int, int],
    state: LayeredState,
    now: int,
) -> pa.Table:
    keys = [*touched, *due]
    stored = state.get_many(keys)
    partitions, names = [number for number, _ in keys], [name for _, name in keys]
    offsets = [0, *ends, *[len(facts)] * len(due)]
    columns = [
        pa.array(names, pa.binary()),
        pa.array(partitions, pa.int32()),
        pa.array([None if row is None else row[0] for row in stored], pa.binary()),
        pa.array([None if row is None else row[1] for row in stored], pa.binary()),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), facts),
        pa.array(list(map(times.get, partitions)), pa.int64()),
        pa.array([now] * len(keys), pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)


def rejected_rows(undecodable: Mapping[int, Sequence[Ungrouped]]) -> pa.Table:
    """Return rows of :data:`RESULT` that have nothing but dead letters, and count the others."""
    rows = [
        {
            "partition": partition,
            "changed": False,
            "outputs": [
                dict(zip(OUTPUT.names, each.letter, strict=True))
                for each in records
                if each.letter is not None
            ],
            "fired": 0,
            "late": 0,
            "dropped": 0,
            "rejected": len(records),
            "expired": 0,
            "reason": shortened(records[0].reason),
        }
        for partition, records in undecodable.items()
    ]
    return pa.Table.from_pylist(rows, schema=RESULT)


def chunks(rows: pa.Table, count: int) -> list[pa.Table]:
    """Return the rows in up to ``count`` parts of about as many facts; a key is in one of them."""
    if rows.num_rows == 0:
        return []
    facts = pc.list_value_length(rows.column("facts")).to_numpy() + 1
    ends = np.cumsum(facts)
    wanted = ends[-1] * np.arange(1, count) / count
    cuts = [0, *np.searchsorted(ends, wanted).tolist(), rows.num_rows]
    parts = [rows.slice(start, end - start) for start, end in pairwise(cuts) if end > start]
    return [part.combine_chunks() for part in parts]
