"""How large the next batch of a partition becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.channel.buffer import Limits

if TYPE_CHECKING:
    from headrace.channel.settings import LiveSettings


class NextBatch:
    """The limits of one batch, by configuration, by the processor's wish and by memory.

    ``share`` is the partition's part of the memory budget in bytes, which the fetcher sets, and
    ``copies`` how often a processor has what is handed out in memory.
    """

    def __init__(self, settings: LiveSettings, copies: int) -> None:
        self.copies = copies
        now = settings.now
        self.share = now.limits.max_bytes * (now.max_in_flight * copies + 1)
        self._settings = settings
        self._wish: Limits | None = None

    def wish(self, max_records: int | None, max_bytes: int | None) -> None:
        """Bound the next batch only, as the processor asked; the channel's limits still hold."""
        if max_records is not None or max_bytes is not None:
            self._wish = self._settings.now.limits.bounded(max_records, max_bytes)

    def waits_for(self) -> Limits:
        """Return with how much a batch does not wait for more.

        It and those in flight with it then fit into the share.
        """
        most = self._most()
        in_share = self.share // (self._settings.now.max_in_flight * self.copies + 1)
        if most.max_bytes <= in_share:
            return most
        return Limits(most.max_records, in_share, most.linger)

    def cut(self) -> Limits:
        """Return the limits of what is cut now; a wish is fulfilled with that.

        What was fetched is in memory however many batches it is handed out in. Only a processor
        that copies it has to be given less, for the copies to fit into the share.
        """
        limits = self._most() if self.copies == 1 else self.waits_for()
        self._wish = None
        return limits

    def _most(self) -> Limits:
        return self._wish or self._settings.now.limits
