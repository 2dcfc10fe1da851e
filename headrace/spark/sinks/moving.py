"""Moving a sink's offsets without data, as every engine does it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.spark.micro_batch import MicroBatch
from headrace.spark.sinks.contract import OffsetKeeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.spark.sinks.contract import OffsetMove, PartitionCommit, Sink


def move_without_data(sink: Sink[Any], offsets: Sequence[PartitionCommit]) -> None:
    """Commit offsets as a micro-batch without a result does. Blocks."""
    micro_batch = MicroBatch(uuid.uuid4().hex[:16], "", ())
    sink.commit(sink.stage(micro_batch, None), offsets)


def move_offset(sink: Sink[Any], move: OffsetMove, note: str) -> None:
    """Move one offset forward or back, as an operator asks. Any thread; blocks.

    Raises:
        HeadraceError: the sink keeps offsets and cannot move them.
    """
    if not isinstance(sink, OffsetKeeper):
        name = type(sink).__name__
        raise HeadraceError(f"{name} keeps offsets and has no move_offsets; give it one")
    sink.move_offsets([move], note)
