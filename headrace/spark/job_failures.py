"""Whether the records of a failed Spark job can be to blame, told from what Spark says."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException

from headrace.spark.failures import JobFailedError, ReducerError

#: What names such a reason in the text of a failed job: an exception of Java's, or the last line of
#: a traceback in a Python worker.
_NO_RECORD = re.compile(
    r"java\.io\.IOException|java\.net\.\w*Exception|OutOfMemoryError|ExecutorLostFailure"
    r"|java\.util\.concurrent\.TimeoutException|org\.apache\.kafka\.common\.\w+"
    r"|^(?:\w+\.)*(?:RetryableError|ConnectionError|Connection(?:Refused|Reset|Aborted)Error"
    r"|BrokenPipeError|TimeoutError|MemoryError|ImportError|ModuleNotFoundError)(?::|$)",
    re.MULTILINE,
)


def failure_of(error: Exception, text: str) -> ReducerError:
    """Return a failed job's error as the channel should see it; ``text`` is Spark's."""
    if isinstance(error, AnalysisException) or _NO_RECORD.search(text):
        return JobFailedError(text)
    return ReducerError(text)
