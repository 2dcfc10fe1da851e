"""Failures of jobs in Spark, and whether records can be to blame."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException

from headrace.core.errors import JobFailedError, ReducerError
from headrace.extensions.spark.failures import failure_of

_LOST = "Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): "
_WORKER = 'Traceback (most recent call last):\n  File "m.py", line 3, in f\n'
_CRASHED = "Python worker exited unexpectedly (crashed)"
_SEGMENTATION = ": Fatal Python error: Segmentation fault\n"


@pytest.mark.parametrize(
    "text",
    [
        _LOST + "java.io.IOException: No space left on device",
        _LOST + "java.net.ConnectException: Connection refused",
        "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired",
        _LOST + "java.lang.OutOfMemoryError: Java heap space",
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "TaskResultLost (result lost from block manager)",
        "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location",
        _LOST + "org.apache.spark.SparkException: " + _CRASHED + ". Consider setting",
        _LOST + "org.apache.spark.SparkException: " + _CRASHED + ": \n",
        _LOST + "java.lang.IllegalStateException: Python daemon failed to launch worker with code",
        _WORKER + "requests.exceptions.ConnectionError: no route",
        _WORKER + "headrace.core.errors.RetryableError: the service is away",
        _WORKER + "headrace.formats.errors.RegistryError: batches wait",
        _WORKER + "headrace.formats.errors.UnknownYetError: batches wait",
        _WORKER + "TimeoutError",
        _WORKER + "ModuleNotFoundError: No module named 'x'",
    ],
)
def test_a_job_may_fail_for_no_record(text: str) -> None:
    """Disk, memory, network, lost processes and missing code, in the JVM and in Python workers."""
    assert isinstance(failure_of(PythonException("failed"), text), JobFailedError)


@pytest.mark.parametrize(
    "text",
    [
        _WORKER + "ValueError: could not convert string to float: 'TimeoutError: x'",
        _WORKER + "KeyError: 'field'",
        _LOST + "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero",
        _LOST + _CRASHED + _SEGMENTATION + "\nCaused by: java.net.SocketException: reset",
        "[CAST_INVALID_INPUT] The value 'x' of the type STRING cannot be cast to INT",
    ],
)
def test_a_failure_inside_of_a_job_is_the_reducer_s(text: str) -> None:
    """Any other failure lets the policy search for the record."""
    assert type(failure_of(PythonException("failed"), text)) is ReducerError


def test_a_refused_plan_is_no_records_fault() -> None:
    """A column that does not exist is missing for every record."""
    assert isinstance(failure_of(AnalysisException("no column"), "no column"), JobFailedError)
