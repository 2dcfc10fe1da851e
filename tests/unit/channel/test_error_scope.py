"""Which failures are a record's, and which are not."""

from __future__ import annotations

import errno

import pytest

from headrace.channel.error_scope import ErrorScope, classify_error
from headrace.core.errors import (
    BatchTimeoutError,
    EngineDiedError,
    InvalidResponseError,
    JobTimeoutError,
    PoisonRecordError,
    ReducerError,
    RetryableError,
    SinkConflictError,
    UndecodableRecordError,
)
from headrace.core.records import TopicPartition
from headrace.kafka.errors import KafkaUnavailableError

P0 = TopicPartition("events", 0)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """Return an error as ``raise error from cause`` makes it."""
    error.__cause__ = cause
    return error


def met_while_handling(error: BaseException, first: BaseException) -> BaseException:
    """Return an error as it is when it is raised while another is being handled."""
    error.__context__ = first
    return error


@pytest.mark.parametrize(
    "error", [PoisonRecordError(P0, 3, "no"), UndecodableRecordError(P0, 3, "no")]
)
def test_an_error_may_name_its_record(error: BaseException) -> None:
    """The code that raises the error knows the record."""
    assert classify_error(error) is ErrorScope.RECORD


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("field"),
        ReducerError("division by zero"),
        SystemExit(3),
        FileNotFoundError(errno.ENOENT, "no such file"),
        OSError("a service answered with 422"),
    ],
    ids=repr,
)
def test_an_unknown_error_may_be_a_record_s_fault(error: BaseException) -> None:
    """An error of unknown cause counts as the batch's."""
    assert classify_error(error) is ErrorScope.BATCH


@pytest.mark.parametrize(
    "error",
    [
        RetryableError("the service is away"),
        BatchTimeoutError(P0, "too slow"),
        JobTimeoutError("too slow"),
        EngineDiedError("gone"),
        SinkConflictError(P0, 1, 2),
        InvalidResponseError(P0, "None"),
        KafkaUnavailableError("away"),
        ConnectionRefusedError("away"),
        TimeoutError("too slow"),
        OSError(errno.ENOSPC, "no space left on device"),
        MemoryError(),
        ImportError("no such module"),
        caused(ValueError("wrapped"), ConnectionResetError("away")),
        met_while_handling(ValueError("wrapped"), TimeoutError("too slow")),
        caused(ValueError("twice"), caused(KeyError("wrapped"), MemoryError())),
    ],
    ids=repr,
)
def test_an_error_of_the_environment_is_no_record_s_fault(error: BaseException) -> None:
    """Time-outs, other systems, the machine and the code count, also as another error's cause."""
    assert classify_error(error) is ErrorScope.ENVIRONMENT
