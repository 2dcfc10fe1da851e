"""How a Spark job can end without a result, other than by an error of the reducer or its data."""

from __future__ import annotations

from headrace.errors import HeadraceError, RetryableError

#: Characters kept of Spark's message: a Python traceback fits, a plan of many pages does not.
_MESSAGE_LENGTH = 4000


class JobCancelledError(HeadraceError):
    """The job's lane cancelled it: a batch in it was withdrawn, or the lane stops."""


class JobTimeoutError(RetryableError):
    """The job's lane cancelled it because it was past its deadline."""


class JvmDiedError(RetryableError):
    """Spark ended under the job. What the job had written by then only the sink can tell."""


class ReducerError(HeadraceError):
    """A Spark job of the reducer failed. The message is Spark's."""


class JobFailedError(ReducerError, RetryableError):
    """Spark refused the plan, or a job failed for want of memory, disk or network.

    No record is to blame.
    """


def text_of(error: Exception) -> str:
    """Return what Spark said, without the JVM's stack, which names no line of the reducer.

    pyspark asks the JVM for the text, so that a dead JVM's errors cannot be read any more.
    """
    try:
        text = str(error).partition("JVM stacktrace:")[0].strip()
    except Exception:  # noqa: BLE001 - the type has to do
        text = ""
    return text[:_MESSAGE_LENGTH] or type(error).__name__
