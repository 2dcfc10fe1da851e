"""What runs the jobs of a processor of micro-batches, as that processor sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.core.clock import Deadline
    from headrace.core.records import Batch, TopicPartition
    from headrace.core.tables import Decode
    from headrace.sinks.contract import OffsetMove, PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch
    from headrace.telemetry.thread_time import ThreadActivity


class Engine(Protocol):
    """What runs the jobs: Spark, or a reducer in this process; a double in unit tests."""

    @property
    def activity(self) -> ThreadActivity:
        """What the lane's thread does during :meth:`stage`."""
        ...

    @property
    def span(self) -> str:
        """What the time of :meth:`stage` is called in a trace."""
        ...

    @property
    def groups(self) -> bool:
        """Whether :meth:`commit` takes several results at once."""
        ...

    def open(self, channel: str, run_once: Callable[[], None], commit: Callable[[], bool]) -> None:
        """Get ready, then call ``run_once`` again and again on the lane's thread.

        And ``commit`` on another; it says whether there was anything to commit.
        """
        ...

    def stored_offset(self, identity: str) -> int | None:
        """Return the sink's offset for a partition."""
        ...

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return the leader epoch that the sink keeps with it."""
        ...

    def boundary(self, batch: Batch) -> int | None:
        """Return where a batch has to be cut, because a part of the sink stands there."""
        ...

    def prepare(self, batch: Batch) -> Any:
        """Do what can be done on a worker thread while another job runs."""
        ...

    def stage(self, micro_batch: MicroBatch, tables: Sequence[Any], seconds: float | None) -> Any:
        """Run the job; nothing is visible yet. On the lane's thread."""
        ...

    def skipped(self, staged: Any) -> Mapping[TopicPartition, Sequence[int]]:
        """Return the offsets of the records that the job left out."""
        ...

    def commit(self, staged: Sequence[Any], offsets: Sequence[PartitionCommit]) -> None:
        """Make results and offsets visible, all of it or nothing. One thread at a time.

        Of several results nothing is discarded by that: each may still be committed by itself.
        """
        ...

    def discard(self, staged: Any) -> None:
        """Remove a result that will not be committed."""
        ...

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Move the sink's offsets without data."""
        ...

    def decode_as(self, decode: Decode) -> None:
        """Decode the next micro-batch in another way; the schema is the same."""
        ...

    def move_to(self, move: OffsetMove, note: str) -> None:
        """Move one of the sink's offsets forward or back, as an operator asks; any thread."""
        ...

    def cancel(self, micro_batch_id: str) -> None:
        """Cancel a running job; does not block, and does nothing when it is over."""
        ...

    def revive(self) -> None:
        """Bring Spark back after an EngineDiedError. On the lane's thread."""
        ...

    def close(self, deadline: Deadline) -> bool:
        """End the lane, commit what it staged, close the sink; say whether it ended in time."""
        ...
