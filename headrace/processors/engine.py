"""The engine that runs the jobs of a processor of micro-batches, as that processor sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from headrace.core.records import Batch
    from headrace.core.tables import OnUndecodable
    from headrace.sinks.channel_sink import ChannelSink, Staged
    from headrace.sinks.micro_batch import MicroBatch
    from headrace.telemetry.thread_time import ThreadActivity


class Engine(Protocol):
    """Computes: Spark, or a reducer in this process; a double in unit tests.

    It has no thread, and knows of the sink only where :meth:`execute` puts what it computed:
    :class:`MicroBatchRunner` owns the threads, and commits or discards.
    """

    #: What the lane is named after, before the channel.
    name: ClassVar[str]

    #: What the lane does during :meth:`execute`, and what that time is called in a trace.
    activity: ClassVar[ThreadActivity]
    span: ClassVar[str]

    def open(self, channel: str) -> None:
        """Check all that can be checked and get ready. Blocks.

        Raises:
            StartError, ConfigError: it cannot be used as configured.
        """
        ...

    def admitted(self) -> AbstractContextManager[None]:
        """Return what the lane is in while it waits for work, does it, and maybe commits.

        Spark's session is replaced while no lane is admitted; and what a job left in the JVM can be
        let go only after all that refers to it.
        """
        ...

    def prepare(self, batch: Batch) -> Any:
        """Prepare a batch on a worker thread while another job runs."""
        ...

    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[Any],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        """Run the job and have the sink keep its result; nothing is visible yet.

        On the lane; blocks, for ``seconds`` where the engine can interrupt a job. Where it raises
        nothing is kept.

        Raises:
            JobCancelledError: :meth:`cancel` was called with this micro-batch, or :meth:`close`.
            JobTimeoutError: it did not end in ``seconds``.
            EngineDiedError: :meth:`revive` has to come before the next.
            UndecodableRecordError: a value does not fit the schema.
            TypeError: the reducer returned what is no result.
            Exception: what the reducer raised, or what is known of its job's failure.
        """
        ...

    def cancel(self, micro_batch_id: str) -> None:
        """Cancel a running job; does not block, and does nothing when it is over. Any thread."""
        ...

    def revive(self) -> None:
        """Get ready again after an EngineDiedError. On the lane; blocks.

        Not left to the next :meth:`execute`: where it fails every current batch fails with it,
        instead of each after an attempt of its own.

        Raises:
            StartError: it could not be done.
        """
        ...

    def set_undecodable(self, undecodable: OnUndecodable) -> None:
        """Set what becomes of undecodable records from the next micro-batch on. Any thread."""
        ...

    def close(self) -> None:
        """Cancel the job under way and refuse the next ones. Any thread; does not block."""
        ...
