"""One tiny job on a session of its own, for ``headrace doctor``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import pyspark

from headrace.clock import Deadline
from headrace.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from headrace.spark.settings import SparkSettings

#: Seconds for the session's end.
_STOP = 20.0

_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Trial:
    """What a session could do: its version, its tasks at once, the seconds until the answer."""

    version: str
    cores: int
    seconds: float


def installed() -> str:
    """Return the version of pyspark."""
    return str(pyspark.__version__)


def try_spark(settings: SparkSettings) -> Trial:
    """Start a session, hand a micro-batch over, run Python on the executors, stop. Blocks.

    Raises:
        StartError: there is no session.
        Exception: what the job raised, as where the workers' Python is another one.
    """
    runtime, begin = SparkRuntime(replace(settings, warm_up=1)), perf_counter()
    try:
        runtime.start()
        # a worker has to be started for this, with the Python that reducers' functions run in
        counted = (
            runtime.context.parallelize(range(_ROWS), 1).map(lambda number: number + 1).count()
        )
        if counted != _ROWS:
            raise RuntimeError(f"a job counted {counted} rows instead of {_ROWS}")
        return Trial(installed(), runtime.cores, perf_counter() - begin)
    finally:
        runtime.stop(Deadline.after(_STOP))
