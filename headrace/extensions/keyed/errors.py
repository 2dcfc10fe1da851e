"""The errors of a keyed channel's store and of its reducer."""

from __future__ import annotations

from headrace.core.errors import RetryableError
from headrace.core.user_text import describe_error, plain_text


class StateStoreError(RetryableError):
    """The local store cannot be read or written. It is never taken for a key without state."""


class CorruptStoreError(StateStoreError):
    """The files are not what was written: the store has to be made again from the changelog."""


class PoisonError(Exception):
    """A fact or a timer that the reducer, or the fold, cannot take."""

    def __init__(self, reason: BaseException | str) -> None:
        super().__init__(plain_text(reason) if isinstance(reason, str) else describe_error(reason))
