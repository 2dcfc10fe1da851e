"""What the process is doing: the threads and the partitions, as SIGUSR1 has the log say it."""

from __future__ import annotations

from datetime import datetime

from headrace.admin.document import Document, Number, Offset, Seconds, Text


class PartitionActivity(Document):
    """One held partition, by the names that the log's ``partition_activity`` has."""

    channel: str
    """The channel."""
    topic: str
    """The topic."""
    partition: Number
    """The number of the partition."""
    epoch: Number
    """The epoch of the claim."""
    state: str
    """What it is doing."""
    position: Offset
    """The next offset to deliver."""
    batch_offset: Offset | None
    """The first record of the oldest batch that is out, or that failed and comes again."""
    batch_end: Offset | None
    """The offset behind that batch."""
    committed: Offset | None
    """The next offset to read after a restart."""
    high_watermark: Offset | None
    """Where the log ends, as last fetched."""
    buffered_records: Number
    """Records that are fetched and not delivered."""
    held_bytes: Number
    """The memory of what is fetched and not answered."""
    outstanding_batches: Number
    """Batches that are not answered."""
    attempts: Number
    """Deliveries of the present batch that failed."""
    suspects: Number
    """Records among which those that fail are being looked for."""
    dead_letters: Number
    """Records put into the dead-letter topic since the claim."""
    held_back_seconds: Seconds | None
    """For how long nothing is delivered yet, after an error or as the processor asked."""
    callback_seconds: Seconds | None
    """For how long a callback has been running."""
    calls: list[str]
    """The calls that the callback's thread is in, the outermost first."""
    last_error: Text | None
    """The last error."""


class Stacks(Document):
    """What every thread and every held partition is doing."""

    at: datetime
    """When that was."""
    threads: dict[str, list[str]]
    """By thread the calls it is in, the outermost first."""
    partitions: list[PartitionActivity]
    """The partitions, channel by channel."""
