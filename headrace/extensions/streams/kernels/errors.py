"""The error that a kernel raises about a record."""

from __future__ import annotations


class RowError(Exception):
    """A record that an operator cannot take: its place in the micro-batch, and why.

    Nothing of the micro-batch was counted. The operator catches it, and what becomes of the record
    is for its policy.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
