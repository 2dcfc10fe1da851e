"""The error that a kernel raises about a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class RowError(Exception):
    """A record that an operator cannot take: its place in the micro-batch, and why.

    Nothing of the micro-batch was counted. The operator catches it, and what becomes of the record
    is for its policy. ``reasons`` has others that fail without this one as well, if that is known:
    where each is of one group, and the time of none counts.
    """

    def __init__(self, at: int, reason: str, others: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.at = at
        self.reasons: Mapping[int, str] = {at: reason, **(others or {})}
