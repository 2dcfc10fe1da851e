"""Planned records that the broker drops before anybody has read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.clock import Deadline
from headrace.errors import HeadraceError
from headrace.references import OffsetRun

if TYPE_CHECKING:
    from headrace.channel.buffer import Cut
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.parts import Parts

log = structlog.get_logger(__name__)

#: Seconds to wait for a partition's leader to say what it has.
ANSWER_TIMEOUT = 5.0


def is_gone(parts: Parts, owned: OwnedPartition, cut: Cut) -> bool:
    """Whether records of ``cut``, which nobody has read yet, are not on the broker any more.

    False also where its leader does not answer. Called by the thread that holds the partition;
    blocks for ``ANSWER_TIMEOUT`` at most, and not at all where the records were fetched.
    """
    if not isinstance(cut.records, OffsetRun):
        return False
    deadline = Deadline.after(ANSWER_TIMEOUT, parts.clock)
    try:
        low, _ = parts.catalog.watermarks(owned.partition, deadline)
    except HeadraceError as silence:
        log.warning(
            "watermarks_unknown",
            channel=parts.name,
            topic=owned.partition.topic,
            partition=owned.partition.partition,
            error=str(silence),
        )
        return False
    return cut.records.start < low


def plan_anew(parts: Parts, owned: OwnedPartition) -> None:
    """Drop what is planned. The source then finds the position out of range, and says so.

    What follows is what the channel's policy has for that, as for records that are fetched.
    """
    owned.discard()
    parts.fetcher.seek(owned)
