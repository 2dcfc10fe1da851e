"""The errors between this process and Kafka."""

from __future__ import annotations

from headrace.core.errors import HeadraceError, StartError


class KafkaUnavailableError(StartError):
    """No broker answered within the time allowed."""


class KafkaAccessError(KafkaUnavailableError):
    """The brokers do not let this user do what is named. They may later: it is waited for alike."""


class UnknownTopicError(StartError):
    """A topic that is needed does not exist on the brokers."""


class OffsetStoreError(HeadraceError):
    """Offsets, or the transactions that hold them, could not be read.

    ``timed_out``: not in time, because no broker answers, or a transaction has them in doubt.
    Otherwise the coordinator answered with an error, or its log cannot be understood.
    """

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class ProduceError(HeadraceError):
    """Records are not known to be in their topic: some may be."""


class LibraryMissingError(HeadraceError):
    """The part in C cannot be used, so that there are no columns; the message says why."""
