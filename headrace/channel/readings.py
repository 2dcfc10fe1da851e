"""Where a partition stands, as metrics and the status show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.metrics import PartitionReading
from headrace.records import made_at

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.records import Record


def reading_of(channel: str, owned: OwnedPartition, now: float) -> PartitionReading:
    """Return where the partition stands. ``now`` is in seconds since the epoch. Any thread."""
    return PartitionReading(
        channel=channel,
        topic=owned.partition.topic,
        partition=owned.partition.partition,
        state=owned.state.value,
        epoch=owned.epoch,
        position=owned.position,
        committed=owned.committed,
        high_watermark=owned.high_watermark,
        lag_seconds=_lag_seconds(owned, now),
        sink_seconds=None if owned.newest is None else max(0.0, now - owned.newest),
    )


def _lag_seconds(owned: OwnedPartition, now: float) -> float | None:
    """Return for how long the oldest record has been waiting that is not answered yet.

    The record's own timestamp says so where it was fetched. Where it was not, it is younger than
    the last one that was answered and than the moment at which everything had been fetched: the
    shorter of both is the longest it can have waited. None if neither is known.
    """
    record = _oldest(owned)
    if record is not None:
        since = made_at(record)
    elif owned.high_watermark is None or owned.buffer.expected >= owned.high_watermark:
        return None if owned.high_watermark is None else 0.0
    else:
        known = [at for at in (owned.newest, owned.caught_up_at) if at is not None]
        since = max(known, default=None)
    return None if since is None else max(0.0, now - since)


def _oldest(owned: OwnedPartition) -> Record | None:
    """Return the oldest record at hand that is not answered, None if there is none."""
    out = [item.cut for item in tuple(owned.outstanding)]
    cuts = (*out, owned.handing_out, *tuple(owned.pending))
    oldest = next((cut for cut in cuts if cut is not None), None)
    return owned.buffer.first() if oldest is None else oldest.records[0]
