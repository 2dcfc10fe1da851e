"""The doubt about the log of one partition: nothing is fetched or delivered meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.channel.events import LogTruncated, OffsetOutOfRange
    from headrace.kafka.ports import LogLook


class LogDoubt:
    """The doubt whether the log of an owned partition still leads to its position.

    The partition's holder changes it; it may be read on any thread.
    """

    def __init__(self) -> None:
        # what was heard of the log: nothing is fetched or delivered until that is settled
        self.doubt: OffsetOutOfRange | LogTruncated | None = None
        # the log lost records before the position: nothing is delivered until that is moved
        self.halted = False
        # when its leader is asked about the doubt; a batch that backs off does not put it off
        self._asks_at = 0.0
        # the look at the log that the start waits for
        self._look: Future[LogLook] | None = None

    @property
    def asks_at(self) -> float | None:
        """Return when the leader is asked (monotonic), None where nothing is in doubt."""
        return None if self.doubt is None else self._asks_at

    def is_ask_due(self, now: float) -> bool:
        """Return whether it is time to ask about the log."""
        return self._asks_at <= now

    def waits(self, now: float) -> bool:
        """Return whether something is in doubt about which it is not time to ask yet."""
        return self.doubt is not None and not self.is_ask_due(now)

    def begin(self, doubt: OffsetOutOfRange | LogTruncated, asks_at: float = 0.0) -> None:
        """Deliver nothing before it is settled what is in doubt; ask at ``asks_at`` (monotonic)."""
        self.doubt, self._asks_at = doubt, asks_at

    def settle(self) -> None:
        """Clear the doubt."""
        self.doubt = None

    def halt(self) -> None:
        """Deliver nothing until the position is moved."""
        self.halted = True

    def clear(self) -> None:
        """Clear the doubt, because the position is another one."""
        self.doubt, self.halted = None, False

    def await_look(self, look: Future[LogLook]) -> None:
        """Store ``look``, whose answer continues the start."""
        self._look = look

    def take_look(self, look: Future[LogLook]) -> bool:
        """Wait for ``look`` no longer; False if the start does not wait for it any more."""
        if look is not self._look:
            return False
        self._look = None
        return True

    def drop_look(self) -> None:
        """Wait for no look: what it would say is of before."""
        self._look = None
