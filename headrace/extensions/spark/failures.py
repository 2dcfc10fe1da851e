"""Failures of Spark jobs, with a reducer's own errors told apart."""

from __future__ import annotations

import re

from headrace.core.errors import JobFailedError, ReducerError

#: Characters kept of Spark's message: a Python traceback fits, a plan of many pages does not.
_MESSAGE_LENGTH = 4000


def text_of(error: Exception) -> str:
    """Return what Spark said, without the JVM's stack, which names no line of the reducer.

    pyspark asks the JVM for the text, so that a dead JVM's errors cannot be read any more.
    """
    try:
        text = str(error).partition("JVM stacktrace:")[0].strip()
    except Exception:  # noqa: BLE001 - the type has to do
        text = ""
    return text[:_MESSAGE_LENGTH] or type(error).__name__


#: What names such a reason in the text of a failed job: an exception of Java's, what Spark says
#: where it lost an executor, its shuffle files or a Python worker, or the last line of a traceback
#: in a Python worker.
_NO_RECORD = re.compile(
    r"java\.io\.IOException|java\.net\.\w*Exception|OutOfMemoryError"
    r"|java\.util\.concurrent\.TimeoutException|org\.apache\.kafka\.common\.\w+"
    r"|ExecutorLostFailure|TaskResultLost|org\.apache\.spark\.shuffle\.\w*FetchFailedException"
    r"|Python worker exited unexpectedly|Python (?:daemon |worker )?failed to (?:launch|connect)"
    r"|^(?:\w+\.)*(?:RetryableError|RegistryError|UnknownYetError|ConnectionError|Connection(?:Refused|Reset|Aborted)Error"
    r"|BrokenPipeError|TimeoutError|MemoryError|ImportError|ModuleNotFoundError)(?::|$)",
    re.MULTILINE,
)

#: A Python worker that its own code ended, as Spark says where its fault handler is on. Of a
#: SIGKILL, which is what the kernel sends where memory is short, the handler learns nothing.
_FAULT = re.compile(r"\(crashed\): Fatal Python error: Segmentation fault")


def failure_of(error: Exception, text: str) -> ReducerError:
    """Return a failed job's error as the channel should see it; ``text`` is Spark's."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - telling kinds of errors needs none

    is_no_record = _NO_RECORD.search(text) and not _FAULT.search(text)
    if isinstance(error, AnalysisException) or is_no_record:
        return JobFailedError(text)
    return ReducerError(text)
