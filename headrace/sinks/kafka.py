"""The Kafka sink: records and offsets in one transaction, former owners shut out by the brokers."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import integer
from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.core.records import ResultRecord
from headrace.core.spans import current_headers
from headrace.sinks.contract import Guarantee, Sink, columns_of, rows_of
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.core.errors import SinkConflictError
    from headrace.formats.writer import ValueWriter
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch


#: Rows that are Python objects at a time.
CHUNK = 2000

_HEADERS = "array<struct<key: string, value: binary>>"

_ADVICE = "change the reducer"

#: The protocol has 32 bits for a partition's number.
_BITS = 32
_LAST_PARTITION = (1 << _BITS - 1) - 1


def check_columns(columns: Sequence[str], topic: str | None, encode: str = "none") -> None:
    """Compare a result's columns with those of a record, as Spark's own Kafka sink has them.

    Raises:
        ResultMisfitError: there is another, one is there twice, or one is missing.
    """
    problems = [f"column {name!r} is there twice" for name in columns if columns.count(name) > 1]
    problems += [
        f"column {name!r} is none of a record's, which are {', '.join(_KINDS)}"
        for name in columns
        if name not in _KINDS
    ]
    if "value" not in columns:
        example = "to_json(struct('*'))" if encode == "none" else "struct('*')"
        problems.append(f"column 'value' is missing, for instance {example} as value")
    if topic is None and "topic" not in columns:
        problems.append("column 'topic' is missing, and the sink names no topic")
    _refuse(problems)


def prepared(rows: pa.Table, topic: str | None) -> pa.Table:
    """Return the rows as :func:`records_of` needs them: keys and values in bytes, times in ms.

    Raises:
        ResultMisfitError: a column has another type.
        RowsRefusedError: a row has a value that no record can have.
    """
    if topic is not None and "topic" in rows.column_names:
        rows = rows.drop_columns(["topic"])
    problems = [
        f"column {field.name!r} is {field.type}, and has to be {_KINDS[field.name][1]}"
        for field in rows.schema
        if not _KINDS[field.name][0](field.type)
    ]
    _refuse(problems)
    for index, field in enumerate(rows.schema):
        if field.name in {"key", "value"}:
            rows = rows.set_column(index, field.name, rows.column(index).cast(pa.binary()))
        elif field.name == "timestamp":
            timestamps = rows.column(index).cast(pa.timestamp("ms", tz="UTC"), safe=False)
            rows = rows.set_column(index, field.name, timestamps.cast(pa.int64()))
    wrong = list(_wrong_rows(rows))
    if wrong:
        raise RowsRefusedError(_sentence(wrong))
    return rows


def _wrong_rows(rows: pa.Table) -> Iterator[str]:
    if "topic" in rows.column_names:
        missing = rows.column("topic").null_count
        if missing:
            yield f"column 'topic' is null in {missing} rows, and the sink names no topic"
    if "partition" in rows.column_names:
        numbers = rows.column("partition")
        below = pc.sum(pc.less(numbers, integer(0, numbers.type))).as_py()
        if below:
            yield f"column 'partition' is below 0 in {below} rows; null leaves it to the key"
        is_wide = pa.types.is_uint32(numbers.type) or numbers.type.bit_width > _BITS
        last = integer(_LAST_PARTITION, numbers.type) if is_wide else None
        above = None if last is None else pc.sum(pc.greater(numbers, last)).as_py()
        if above:
            yield f"column 'partition' is above {_LAST_PARTITION} in {above} rows"
    if "headers" in rows.column_names:
        headers = pc.list_flatten(rows.column("headers"))
        nameless = pc.struct_field(headers, "key").null_count
        if nameless:
            yield f"column 'headers' has {nameless} headers without a key"


def records_of(rows: pa.Table, topic: str | None) -> Iterator[ResultRecord]:
    """Yield the prepared rows as records, in their order."""
    for chunk in rows.to_batches(max_chunksize=CHUNK):
        columns = {name: chunk.column(name).to_pylist() for name in rows.column_names}
        nothing = [None] * chunk.num_rows
        yield from map(
            ResultRecord,
            columns.get("topic", [topic] * chunk.num_rows),
            columns["value"],
            columns.get("key", nothing),
            map(_headers, columns.get("headers", nothing)),
            columns.get("partition", nothing),
            columns.get("timestamp", nothing),
        )


def _headers(found: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if found is None else [(each["key"], each["value"]) for each in found]


def traced(records: Iterable[ResultRecord]) -> Iterable[ResultRecord]:
    """Return the records with the context of the current span, after the headers they have."""
    headers = current_headers()
    if not headers:
        return records
    return (each._replace(headers=[*(each.headers or ()), *headers]) for each in records)


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ResultMisfitError(_sentence(problems))


def _sentence(problems: Sequence[str]) -> str:
    named = "; ".join(dict.fromkeys(problems))
    return f"the result does not fit records of Kafka: {named}; {_ADVICE}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return (
        fields.keys() == {"key", "value"}
        and _is_text(fields["key"])
        and bool(pa.types.is_binary(fields["value"]))
    )


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


#: A record's columns: which types fit, and what to call them.
_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_is_bytes, "string or binary"),
    "value": (_is_bytes, "string or binary"),
    "topic": (_is_text, "string"),
    "partition": (_is_integer, "int"),
    "headers": (_is_headers, _HEADERS),
    "timestamp": (_is_moment, "timestamp"),
}


class Transactions(Protocol):
    """The transactions that produce records and keep offsets, as
    ``headrace.kafka.ResultTransactions``.

    Any thread.
    """

    def require(self, topic: str) -> int | None:
        """Return how many partitions a topic has; a StartError says that it does not exist."""
        ...

    def stored(self, identity: str) -> int | None:
        """Return the offset stored for a partition, once no transaction has it in doubt."""
        ...

    def leader_epoch(self, identity: str) -> int | None:
        """Return the leader epoch stored with it."""
        ...

    def commit(
        self,
        moves: Sequence[OffsetMove],
        records: Iterable[ResultRecord] = (),
    ) -> list[SinkConflictError]:
        """Produce and move, both or neither; return the conflicts for which nothing was done.

        Raises:
            RowsRefusedError: a record cannot be produced, now or later.
            RetryableError: nothing was stored as far as can be told.
        """
        ...

    def close(self) -> None:
        """Release the clients."""
        ...


class KafkaSink(Sink["pa.Table | None"]):
    """Produces each row as a record, exactly once for readers with ``read_committed``.

    Rows go to ``topic``; without one, each says in its column ``topic`` where it goes. ``writer``
    makes values of structs, None: they are bytes or text already. Each
    partition's next offset moves in the transaction that has the records, after it was found where
    the micro-batch begins. docs/sinks/kafka.md says what keeps former owners out.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        transactions: Transactions,
        topic: str | None = None,
        writer: ValueWriter | None = None,
    ) -> None:
        self._transactions = transactions
        self._topic = topic
        self._writer = writer

    def open(self) -> None:
        if self._topic is not None:
            self._transactions.require(self._topic)
        if self._writer is not None:
            self._writer.open(self._topic)

    def stored_offset(self, identity: str) -> int | None:
        return self._transactions.stored(identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        return self._transactions.leader_epoch(identity)

    def stage(
        self,
        micro_batch: MicroBatch,  # noqa: ARG002 - records do not say which they are of
        result: Result | None,
    ) -> pa.Table | None:
        """Collect the result as an Arrow table. Spark's ``maxResultSize`` bounds its size."""
        columns = [] if result is None else columns_of(result)
        if result is None or not columns:
            return None
        encode = "none" if self._writer is None else self._writer.format
        check_columns(columns, self._topic, encode)
        rows = rows_of(result)
        if self._writer is not None:
            topics = rows.column("topic") if self._topic is None else self._topic
            values = self._writer.written(rows.column("value"), topics)
            rows = rows.set_column(rows.column_names.index("value"), "value", values)
        return prepared(rows, self._topic)

    def commit(self, staged: pa.Table | None, offsets: Sequence[PartitionCommit]) -> None:
        self.commit_all([staged], offsets)

    def commit_all(
        self, staged: Sequence[pa.Table | None], offsets: Sequence[PartitionCommit]
    ) -> None:
        self.commit_together([(self, own) for own in staged], offsets)

    def commit_with(
        self,
        staged: Sequence[pa.Table | None],
        offsets: Sequence[PartitionCommit],
        records: Sequence[ResultRecord],
    ) -> None:
        self.commit_together([(self, own) for own in staged], offsets, records)

    @staticmethod
    def commit_together(
        staged: Sequence[tuple[KafkaSink, pa.Table | None]],
        offsets: Sequence[PartitionCommit],
        others: Sequence[ResultRecord] = (),
    ) -> None:
        """Commit what sinks with the same transactions have staged in one, as :meth:`commit`."""
        records = chain.from_iterable(
            records_of(rows, sink._topic)  # noqa: SLF001 - of this class
            for sink, rows in staged
            if rows is not None
        )
        made = traced(chain(records, others))
        conflicts = staged[0][0]._transactions.commit(offsets, made)  # noqa: SLF001 - of this class
        _require_none(conflicts)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:  # noqa: ARG002
        """Move the offsets in a transaction without records; Kafka has no history for ``note``."""
        _require_none(self._transactions.commit(moves))

    def close(self) -> None:
        self._transactions.close()


def _require_none(conflicts: Sequence[SinkConflictError]) -> None:
    if conflicts:
        raise CommitConflictError(conflicts)
