"""The sinks of results: their protocol, and those that come with Headrace."""

from __future__ import annotations

from headrace.core.records import present_identity
from headrace.sinks.contract import (
    BatchCommitSink,
    Guarantee,
    OffsetMove,
    OutputReplacer,
    PartitionCommit,
    Replacement,
    Sink,
    StoredLeaderEpochs,
    TransactionalOffsets,
)
from headrace.sinks.errors import CommitConflictError, ReplaceRefusedError

__all__ = [
    "BatchCommitSink",
    "CommitConflictError",
    "Guarantee",
    "OffsetMove",
    "OutputReplacer",
    "PartitionCommit",
    "ReplaceRefusedError",
    "Replacement",
    "Sink",
    "StoredLeaderEpochs",
    "TransactionalOffsets",
    "present_identity",
]
