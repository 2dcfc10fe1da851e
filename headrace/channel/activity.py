"""What a partition is doing at this moment, for people who look for the reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace.stacks import stack_of

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition


@dataclass(frozen=True, slots=True)
class Activity:
    """One held partition. Offsets and counts as they are just now, seconds since something.

    ``callback_seconds`` says for how long a callback has been running, ``calls`` where in it its
    thread is; without one they are None and empty.
    """

    channel: str
    topic: str
    partition: int
    epoch: int
    state: str
    position: int
    committed: int | None
    high_watermark: int | None
    buffered_records: int
    outstanding_batches: int
    attempts: int
    callback_seconds: float | None
    calls: tuple[str, ...]
    last_error: str | None

    def facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def activity_of(channel: str, owned: OwnedPartition, now: float) -> Activity:
    """Look at a partition; any thread, ``now`` in monotonic seconds."""
    since, thread = owned.callback_since, owned.callback_thread
    return Activity(
        channel=channel,
        topic=owned.partition.topic,
        partition=owned.partition.partition,
        epoch=owned.epoch,
        state=owned.state.value,
        position=owned.position,
        committed=owned.committed,
        high_watermark=owned.high_watermark,
        buffered_records=owned.buffer.records,
        outstanding_batches=len(owned.outstanding),
        attempts=owned.attempts,
        callback_seconds=None if since is None else round(now - since, 3),
        calls=() if since is None else tuple(stack_of(thread)),
        last_error=owned.last_error,
    )
