"""The errors of a sink whose offsets or output are not as asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import HeadraceError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.errors import SinkConflictError


class CommitConflictError(RetryableError):
    """Some partitions' stored offsets are not where the micro-batch begins; nothing was stored.

    ``conflicts`` has one error for each of them; the others' offsets were as expected.
    """

    def __init__(self, conflicts: Sequence[SinkConflictError]) -> None:
        super().__init__("; ".join(map(str, conflicts)))
        self.conflicts = tuple(conflicts)


class ReplaceRefusedError(HeadraceError):
    """The sink cannot tell what its output of the range is, or not remove it. Nothing changed."""
