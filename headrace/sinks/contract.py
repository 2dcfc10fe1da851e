"""The contract of a sink. docs/sinks/custom.md tells how to write one of your own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from headrace.core.errors import (
    SinkConflictError,
)
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import TypeAlias

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.core.records import ResultRecord, TopicPartition
    from headrace.sinks.micro_batch import MicroBatch


if TYPE_CHECKING:
    #: A DataFrame is a plan: its job runs when a sink asks for the rows. A table has them already,
    #: and there need not be a Spark session.
    Result: TypeAlias = DataFrame | pa.Table


def columns_of(result: Result) -> list[str]:
    """Return the names of the columns. Runs nothing."""
    import pyarrow as pa  # noqa: PLC0415 - who knows of sinks alone needs no pyarrow

    return list(result.column_names if isinstance(result, pa.Table) else result.columns)


def rows_of(result: Result) -> pa.Table:
    """Return the rows, in this process's memory. Blocks for the job of a DataFrame."""
    import pyarrow as pa  # noqa: PLC0415 - who knows of sinks alone needs no pyarrow

    return result if isinstance(result, pa.Table) else result.toArrow()


#: Spark's names of types, in the JSON of a schema, by what Arrow has in their place.
_SPARK_TYPES = {
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}


def schema_of(result: Result) -> pa.Schema | None:
    """Return the types of the columns, as far as they are known before the job. Runs nothing.

    A column of a DataFrame whose type has no plain counterpart in Arrow is left out.
    """
    import pyarrow as pa  # noqa: PLC0415 - who knows of sinks alone needs no pyarrow

    if isinstance(result, pa.Table):
        return result.schema
    fields = [
        (each["name"], _arrow_type(each["type"])) for each in result.schema.jsonValue()["fields"]
    ]
    return pa.schema([(name, kind) for name, kind in fields if kind is not None])


def _arrow_type(kind: Any) -> pa.DataType | None:
    """Return what Arrow has for a type in Spark's JSON, None where that is not plain."""
    import pyarrow as pa  # noqa: PLC0415 - who knows of sinks alone needs no pyarrow

    if isinstance(kind, dict):
        return _nested_type(kind)
    if kind in {"timestamp", "timestamp_ntz"}:
        return pa.timestamp("us", tz="UTC" if kind == "timestamp" else None)
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return pa.type_for_alias(_SPARK_TYPES[kind]) if kind in _SPARK_TYPES else None


def _nested_type(kind: dict[str, Any]) -> pa.DataType | None:
    import pyarrow as pa  # noqa: PLC0415 - who knows of sinks alone needs no pyarrow

    match kind["type"]:
        case "array":
            parts = [_arrow_type(kind["elementType"])]
            return None if None in parts else pa.list_(*parts)
        case "map":
            parts = [_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"])]
            return None if None in parts else pa.map_(*parts)
        case "struct":
            names = [each["name"] for each in kind["fields"]]
            parts = [_arrow_type(each["type"]) for each in kind["fields"]]
            return None if None in parts else pa.struct(list(zip(names, parts, strict=True)))
    return None


def results_of(
    returned: object, check: Callable[[object], Any], names: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the results that a reducer made for several outputs, each of them checked.

    ``names`` are those of the outputs, where they are known.

    Raises:
        TypeError: it is no mapping, has names of no outputs, or a result is none.
    """
    if not isinstance(returned, Mapping):
        raise TypeError(
            f"the reducer returned a {type(returned).__name__}; for several outputs it must return "
            "a dict of their names and results, or None to store the offsets only"
        )
    unknown = [name for name in returned if names is not None and name not in names]
    if unknown:
        raise TypeError(
            f"the reducer returned a result for {unknown[0]!r}, which is none of the outputs "
            f"{', '.join(names or ())}; name it in sink.outputs, or leave it out"
        )
    return {name: check(result) for name, result in returned.items()}


class Guarantee(Enum):
    """The effect that a restart, a crash or a change of owner can have on the sink's content."""

    EXACTLY_ONCE = "exactly once"
    """Data and offsets move in one transaction: nothing is lost and nothing is there twice."""

    AT_LEAST_ONCE = "at least once"
    """Nothing is lost; what was written before a crash may be written again."""

    NOT_KEPT = "not kept"
    """Results are computed and thrown away."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One partition's offset in a sink goes from ``start`` to ``next_offset``, forward or back.

    Of its own it is what an operator asks for: no data goes with it. ``identity`` is what the sink
    stores the offset under: it names the data, not just the topic. ``transactional_id`` is one for
    each membership of this member, for sinks that have the brokers shut out former owners; None
    where no claim names one. ``leader_epoch`` is one under which the partition's log was seen to
    lead to ``next_offset``; where it is None, a stored one is dropped.
    """

    identity: str
    partition: TopicPartition
    start: int
    next_offset: int
    transactional_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionCommit(OffsetMove):
    """One partition's share of a commit of data.

    ``is_tick``: no record is in it, and the sink counts its commits.

    Raises:
        ValueError: the offset would not move, so that stored and not stored looked the same.
    """

    is_tick: bool = False

    def __post_init__(self) -> None:
        if self.next_offset <= self.start and not self.is_tick:
            raise ValueError(f"{self.partition}: {self.next_offset} is not past {self.start}")


def conflicts_in(found: Iterable[tuple[OffsetMove, int | None]]) -> list[SinkConflictError]:
    """Return an error for each offset that is neither absent nor where its move is to start."""
    return [
        SinkConflictError(move.partition, move.start, stored)
        for move, stored in found
        if stored not in {None, move.start}
    ]


def require_starts(found: Iterable[tuple[OffsetMove, int | None]]) -> None:
    """Return if each offset is absent, or where its move is to start.

    Raises:
        CommitConflictError: some are elsewhere.
    """
    if conflicts := conflicts_in(found):
        raise CommitConflictError(conflicts)


def are_moved(found: Iterable[tuple[OffsetMove, int | None]]) -> bool:
    """Return whether a commit with an unknown outcome was made, as far as the offsets found tell.

    One that was not to move tells nothing.
    """
    moves = [(move, stored) for move, stored in found if move.next_offset != move.start]
    return bool(moves) and all(stored == move.next_offset for move, stored in moves)


@runtime_checkable
class TransactionalOffsets(Protocol):
    """The extra methods of a sink whose offsets win at the start and may be moved by an operator.

    Neither method needs :meth:`Sink.open`. Any thread; both block.
    """

    def stored_offset(self, identity: str) -> int | None:
        """Return the next offset stored for a partition, None if there is none."""
        ...

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move all of the offsets or none; ``note`` says in the sink's own history why.

        Raises:
            CommitConflictError: an offset is not where its move starts, so another writes.
            Exception: nothing was moved, as far as the sink can tell.
        """
        ...


@runtime_checkable
class StoredLeaderEpochs(Protocol):
    """The extra method of a sink with offsets that keeps the shares' leader epochs with them."""

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return what was stored with the offset, None where nothing was. Any thread; blocks.

        A member of an earlier version moves the offset alone: the epoch does not count where the
        group's offset shows that such a one was the last.
        """
        ...


@dataclass(frozen=True, slots=True)
class Replacement:
    """The offsets and rows that a replacement takes.

    ``offsets`` has where each partition has to go, by its identity: the offsets that were asked
    for, or lower ones where output can only be removed together with that of earlier records, and
    partitions that were not asked for where it is of their records, too. ``rows`` counts what is
    removed.
    """

    offsets: Mapping[str, int]
    rows: int


@runtime_checkable
class OutputReplacer(Protocol):
    """The extra methods of a :class:`TransactionalOffsets` that can remove its output of a range.

    A move's range are all records from its ``next_offset`` on, of which the sink may have output up
    to its ``start``, and more after an earlier move back. A move to where the offset stands removes
    as well; one forward removes nothing. Neither method needs :meth:`Sink.open`. Any thread; both
    block.
    """

    def plan_replace(self, moves: Sequence[OffsetMove]) -> Replacement:
        """Return what replacing takes, and change nothing.

        Raises:
            ReplaceRefusedError: the sink cannot replace the output of these ranges.
        """
        ...

    def replace(self, moves: Sequence[OffsetMove], note: str) -> int:
        """Remove the output of the ranges and move the offsets, all or nothing; return the rows.

        Output is removed that is of the ranges alone, and all of it. ``note`` is as in
        :meth:`TransactionalOffsets.move_offsets`.

        Raises:
            CommitConflictError: an offset is not where its move starts, so another writes.
            ReplaceRefusedError: as in :meth:`plan_replace`, or it takes other moves than these.
            Exception: nothing was changed, as far as the sink can tell.
        """
        ...


@runtime_checkable
class PartialSink(Protocol):
    """The extra method of a sink whose parts may stand apart after a crash or a failure."""

    def boundary(self, identity: str, start: int) -> int | None:
        """Return the offset that a batch from ``start`` must not cross, None without one.

        Any thread; does not block.
        """
        ...


@runtime_checkable
class BatchCommitSink(Protocol):
    """The extra method of a sink that can commit several micro-batches in one transaction."""

    def commit_all(self, staged: Sequence[Any], offsets: Sequence[PartitionCommit]) -> None:
        """Make all that was staged visible, in its order, and move the offsets; or do nothing.

        There is one share for each partition, from where the first of the micro-batches begins to
        where the last one ends. Called as :meth:`Sink.commit` is, and raises the same; of what was
        staged nothing may be gone then, because each is committed by itself next.
        """
        ...


@runtime_checkable
class CopyingSink(Protocol):
    """The extra method of a sink whose transaction is of Kafka and may have other records."""

    def commit_with(
        self,
        staged: Sequence[Any],
        offsets: Sequence[PartitionCommit],
        records: Sequence[ResultRecord],
    ) -> None:
        """Commit as :meth:`BatchCommitSink.commit_all` does, and produce these records with it."""
        ...


S = TypeVar("S")


class Sink(Protocol[S]):
    """Stores the results of micro-batches, and their offsets where it can.

    ``S`` is what :meth:`stage` hands to :meth:`commit`. Between the two the processor makes sure
    that every partition is still its own. A class derived from this one may leave out :meth:`open`,
    :meth:`discard` and :meth:`close`, which do nothing then, and :meth:`stored_offset` if it keeps
    no offsets. :meth:`stored_offset` is called on any thread,
    :meth:`stage` on the lane's, while :meth:`commit` may be at work on an earlier micro-batch: that
    is called one at a time, in the order of the offsets, and by several threads.
    """

    @property
    def guarantee(self) -> Guarantee:
        """Return what the sink promises."""
        ...

    def open(self) -> None:
        """Get ready, before anything is claimed. May block.

        Raises:
            StartError: the sink cannot be used as configured.
        """
        return

    def stored_offset(self, identity: str) -> int | None:  # noqa: ARG002 - for those that have none
        """Return the next offset stored for a partition, None if the sink has none. May block."""
        return None

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> S:
        """Run the job and keep what it made where no reader sees it. Blocks for the job.

        A channel of type spark gives a DataFrame, whose job runs here; one of type arrow a table.
        """
        ...

    def commit(self, staged: S, offsets: Sequence[PartitionCommit]) -> None:
        """Make what was staged visible and move the offsets, both or neither.

        A sink that keeps no offsets makes the data durable and returns.

        Raises:
            CommitConflictError: a stored offset is neither absent nor the share's ``start``.
            RowsRefusedError: rows are at fault, so that the error policy may look for them.
            FencedError: nothing can be stored in this membership; the member joins again.
            Exception: nothing was stored, or the sink cannot tell; a replay must be safe.
        """
        ...

    def discard(self, staged: S) -> None:  # noqa: ARG002 - for those that hold nothing
        """Remove what was staged and will not be committed. Never raises."""
        return

    def close(self) -> None:
        """Release every resource, after the last call."""
        return
