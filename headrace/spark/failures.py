"""How a Spark job can end without a result, other than by an error of the reducer or its data."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException

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
    """Spark refused the reducer's plan, or one of its jobs failed. The message is Spark's."""


class JobFailedError(ReducerError, RetryableError):
    """Spark refused the plan, or a job failed for want of memory, disk or network.

    No record is to blame.
    """


#: What names such a reason in the text of a failed job: an exception of Java's, or the last line of
#: a traceback in a Python worker.
_NO_RECORD = re.compile(
    r"java\.io\.IOException|java\.net\.\w*Exception|OutOfMemoryError|ExecutorLostFailure"
    r"|^(?:\w+\.)*(?:RetryableError|ConnectionError|Connection(?:Refused|Reset|Aborted)Error"
    r"|BrokenPipeError|TimeoutError|MemoryError|ImportError|ModuleNotFoundError)(?::|$)",
    re.MULTILINE,
)


def failure_of(error: Exception, text: str) -> ReducerError:
    """Return a failed job's error as the channel should see it; ``text`` is Spark's."""
    if isinstance(error, AnalysisException) or _NO_RECORD.search(text):
        return JobFailedError(text)
    return ReducerError(text)


def text_of(error: Exception) -> str:
    """Return what Spark said, without the JVM's stack, which names no line of the reducer.

    pyspark asks the JVM for the text, so that a dead JVM's errors cannot be read any more.
    """
    try:
        text = str(error).partition("JVM stacktrace:")[0].strip()
    except Exception:  # noqa: BLE001 - the type has to do
        text = ""
    return text[:_MESSAGE_LENGTH] or type(error).__name__
