"""The scope of a failure: a record, some record of a batch, or what is around them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from headrace.core.errors import (
    ConfigError,
    FatalError,
    PartitionError,
    PoisonRecordError,
    RetryableError,
    StartError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class ErrorScope(Enum):
    """The place where the reason of a failure lies, as far as the error tells."""

    RECORD = "record"
    """In one record, which the error names; trying again is no use."""

    BATCH = "batch"
    """In some record of the batch, if it fails again and again."""

    ENVIRONMENT = "environment"
    """In no record: something is away, full or wrong. The batch is retried until it is fixed."""


#: A time-out tells nothing of the records: what is slow for a batch is slow for the next one, too.
#: ``ImportError``: the code is at fault, and would be with every record.
_ENVIRONMENT_ERRORS = (
    RetryableError,
    PartitionError,
    StartError,
    ConfigError,
    FatalError,
    MemoryError,
    ImportError,
    ConnectionError,
    TimeoutError,
)

#: What the operating system says of a path, which may have come from a record.
_OF_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def classify_error(error: BaseException) -> ErrorScope:
    """Return where the reason lies; what the error was caused by counts as well."""
    if isinstance(error, PoisonRecordError):
        return ErrorScope.RECORD
    return (
        ErrorScope.ENVIRONMENT if any(map(_is_of_environment, causes(error))) else ErrorScope.BATCH
    )


def _is_of_environment(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return not isinstance(error, _OF_PATHS)
    return isinstance(error, _ENVIRONMENT_ERRORS)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, as a traceback would show it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
