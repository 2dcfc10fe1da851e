"""The Kafka sink: records and offsets in one transaction, former owners shut out by the brokers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ResultRefusedError
from headrace.spark.sinks.contract import CommitConflictError, Guarantee, RowsRefusedError
from headrace.spark.sinks.kafka.rows import check_columns, prepared, records_of
from headrace.spark.sinks.result import columns_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from headrace.errors import SinkConflictError
    from headrace.records import ResultRecord
    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import OffsetMove, PartitionCommit
    from headrace.spark.sinks.result import Result


class Transactions(Protocol):
    """What produces records and keeps offsets (``headrace.kafka.KafkaResults``). Any thread."""

    def require(self, topic: str) -> None:
        """Return if a topic exists; a StartError says that it does not."""
        ...

    def stored(self, identity: str) -> int | None:
        """Return the offset stored for a partition, once no transaction has it in doubt."""
        ...

    def leader_epoch(self, identity: str) -> int | None:
        """Return the leader epoch stored with it."""
        ...

    def commit(
        self,
        moves: Sequence[PartitionCommit] | Sequence[OffsetMove],
        records: Iterable[ResultRecord] = (),
    ) -> list[SinkConflictError]:
        """Produce and move, both or neither; return the conflicts for which nothing was done.

        Raises:
            ResultRefusedError: a record cannot be produced, now or later.
            RetryableError: nothing was stored as far as can be told.
        """
        ...

    def close(self) -> None:
        """Release the clients."""
        ...


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """A result in this process's memory; ``rows`` is None where the reducer returned none."""

    name: str
    rows: pa.Table | None = None


class KafkaSink:
    """Produces each row as a record, exactly once for readers with ``read_committed``.

    Rows go to ``topic``; without one, each says in its column ``topic`` where it goes. Each
    partition's next offset moves in the transaction that has the records, after it was found where
    the micro-batch begins. docs/sinks.md says what keeps former owners out.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, transactions: Transactions, topic: str | None = None) -> None:
        self._transactions = transactions
        self._topic = topic

    def open(self) -> None:
        """Look for the topic.

        Raises:
            StartError: it does not exist, or no broker answers.
        """
        if self._topic is not None:
            self._transactions.require(self._topic)

    def stored_offset(self, identity: str) -> int | None:
        """Return the offset in Kafka, None without one.

        Raises:
            KafkaUnavailableError, OffsetStoreError: the brokers did not answer.
        """
        return self._transactions.stored(identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return what was stored with the offset, in the same commit."""
        return self._transactions.leader_epoch(identity)

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedRecords:
        """Collect the result as an Arrow table. Spark's ``maxResultSize`` bounds its size.

        Raises:
            SchemaMismatchError: the result's columns are not those of records.
        """
        columns = [] if result is None else columns_of(result)
        if result is None or not columns:
            return StagedRecords(micro_batch.id)
        check_columns(columns, self._topic)
        return StagedRecords(micro_batch.id, prepared(rows_of(result), self._topic))

    def commit(self, staged: StagedRecords, offsets: Sequence[PartitionCommit]) -> None:
        """Produce the rows and move the offsets in one transaction.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            FencedError: a new owner shut this member's producer out.
            RowsRefusedError: a row is too large, or for a partition that does not exist.
            HeadraceError: nothing was stored as far as can be told.
        """
        self.commit_together([(self, staged)], offsets)

    def commit_all(
        self, staged: Sequence[StagedRecords], offsets: Sequence[PartitionCommit]
    ) -> None:
        """Produce the rows of several results, in their order, in one; see :meth:`commit`."""
        self.commit_together([(self, own) for own in staged], offsets)

    @staticmethod
    def commit_together(
        staged: Sequence[tuple[KafkaSink, StagedRecords]], offsets: Sequence[PartitionCommit]
    ) -> None:
        """Commit what sinks with the same transactions have staged in one, as :meth:`commit`."""
        records = chain.from_iterable(sink._records(own) for sink, own in staged)  # noqa: SLF001 - of this class
        try:
            conflicts = staged[0][0]._transactions.commit(offsets, records)  # noqa: SLF001 - as above
        except ResultRefusedError as error:
            raise RowsRefusedError(str(error)) from error
        _require_none(conflicts)

    def _records(self, staged: StagedRecords) -> Iterable[ResultRecord]:
        return () if staged.rows is None else records_of(staged.rows, self._topic)

    def discard(self, staged: StagedRecords) -> None:
        """Hold nothing: the rows are in memory, and a failed transaction is undone."""

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:  # noqa: ARG002
        """Move the offsets in a transaction without records. Kafka keeps no history for ``note``.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            HeadraceError: nothing was stored as far as can be told.
        """
        _require_none(self._transactions.commit(moves))

    def close(self) -> None:
        """Close the clients."""
        self._transactions.close()


def _require_none(conflicts: Sequence[SinkConflictError]) -> None:
    if conflicts:
        raise CommitConflictError(conflicts)
