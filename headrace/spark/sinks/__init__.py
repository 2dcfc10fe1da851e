"""Where results go: the protocol of a sink, and those that come with Headrace."""

from __future__ import annotations

from headrace.spark.sinks.contract import (
    CommitConflictError,
    Grouping,
    Guarantee,
    LeaderEpochKeeper,
    OffsetKeeper,
    OffsetMove,
    OutputReplacer,
    PartitionCommit,
    Replacement,
    ReplaceRefusedError,
    Sink,
)

__all__ = [
    "CommitConflictError",
    "Grouping",
    "Guarantee",
    "LeaderEpochKeeper",
    "OffsetKeeper",
    "OffsetMove",
    "OutputReplacer",
    "PartitionCommit",
    "ReplaceRefusedError",
    "Replacement",
    "Sink",
]
