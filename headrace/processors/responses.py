"""What a processor answers to a batch: one value that says everything the channel has to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Request(Enum):
    """The three things a processor can ask for, each relative to the batch it answers."""

    CONTINUE = "continue"
    """The batch is answered; commit nothing."""

    ADVANCE = "advance"
    """The batch is answered; commit the offset behind it."""

    REVERT = "revert"
    """Read again from the highest offset that was advanced to."""


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """The answer to one batch.

    Build it with :meth:`continue_`, :meth:`advance` or :meth:`revert`. ``wait`` (seconds) holds
    the partition back and the two sizes bound the next batch only; both apply to batches cut
    after the answer. An ``offset`` moves the position, which withdraws every later outstanding
    batch of the partition. Offsets mean the next record to read.

    Raises:
        ValueError: an offset, a wait or a size is negative, or fields contradict each other.
    """

    request: Request
    offset: int | None = None
    commit_to: int | None = None
    wait: float = 0.0
    max_records: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("offset", "commit_to", "wait"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        for name in ("max_records", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.commit_to is not None and self.request is not Request.ADVANCE:
            raise ValueError(f"commit_to goes with advance, not with {self.request.value}")
        if self.commit_to is not None and self.offset is not None:
            raise ValueError("give offset (seek and commit) or commit_to (commit only), not both")

    @classmethod
    def continue_(
        cls,
        *,
        offset: int | None = None,
        wait: float = 0.0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> BatchResponse:
        """Go on without a commit; with ``offset``, go on from there."""
        return cls(Request.CONTINUE, offset, None, wait, max_records, max_bytes)

    @classmethod
    def advance(
        cls,
        *,
        offset: int | None = None,
        commit_to: int | None = None,
        wait: float = 0.0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> BatchResponse:
        """Commit the offset behind the batch.

        With ``commit_to``, commit that offset instead and read on; it lies between the committed
        offset and the end of the batch. With ``offset``, seek there and commit that.
        """
        return cls(Request.ADVANCE, offset, commit_to, wait, max_records, max_bytes)

    @classmethod
    def revert(
        cls,
        *,
        offset: int | None = None,
        wait: float = 0.0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> BatchResponse:
        """Read again from where the last advance was, or from ``offset``; commit nothing."""
        return cls(Request.REVERT, offset, None, wait, max_records, max_bytes)
