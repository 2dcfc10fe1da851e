"""Spark: does a session start and run a job?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.doctor.finding import error, ok
from headrace.spark.factory import spark_settings
from headrace.spark.trial import try_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.config import SparkConfig
    from headrace.doctor.finding import Finding
    from headrace.spark.settings import SparkSettings
    from headrace.spark.trial import Trial

log = structlog.get_logger(__name__)


def check_spark(
    section: SparkConfig, attempt: Callable[[SparkSettings], Trial] = try_spark
) -> Iterator[Finding]:
    """Start a session with the configuration's settings and run a job. Takes 10 s and more."""
    try:
        trial = attempt(spark_settings(section))
    except Exception as problem:
        # whatever stops Spark here stops it in the daemon
        log.debug("doctor_spark_failed", exc_info=True)
        text = str(problem).strip().splitlines()
        seen = f"{type(problem).__name__}: {text[0] if text else 'no reason given'}"
        advice = "see the log above; correct the spark section or Java"
        yield error("spark", seen, advice)
    else:
        seen = f"Spark {trial.version} on {section.master}, {trial.cores} tasks at once: "
        yield ok("spark", f"{seen}a session and a job in {trial.seconds:.1f} s")
