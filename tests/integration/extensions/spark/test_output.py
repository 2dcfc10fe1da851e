"""The output of Spark's JVM, on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.spark.gateway import Jvm
from headrace.extensions.spark.settings import SparkSettings
from headrace.telemetry.logs import set_level
from headrace.telemetry.logs.levels import forget_levels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.extensions.spark.runtime import SparkRuntime

_SCHEDULER = "spark.org.apache.spark.scheduler.DAGScheduler"


@pytest.fixture
def _levels() -> Iterator[None]:
    """Begin in silence, whatever a former test left; put the levels back, in the JVM as well."""
    set_level("error", "spark")
    yield
    set_level(None, _SCHEDULER)
    set_level(None, "spark")
    forget_levels()


@pytest.mark.usefixtures("_levels")
def test_the_jvms_log_comes_as_events_at_a_level_chosen_at_run_time(
    spark_runtime: SparkRuntime,
) -> None:
    """A job is silent; with its logger at info Spark tells of it; then it is silent again."""

    def run_job() -> list[dict[str, Any]]:
        with capture_logs() as entries:
            assert spark_runtime.session.range(10).count() == 10
            java: Any = spark_runtime.session._jvm
            java.System.err.println("end of the job")
            assert wait_for(
                lambda: any(e.get("line") == "end of the job" for e in entries), Deadline.after(20)
            )
        return [dict(entry) for entry in entries if entry["event"] == "spark_log"]

    assert run_job() == []
    set_level("info", _SCHEDULER)
    told = run_job()
    assert told
    assert {entry["log_level"] for entry in told} == {"info"}
    assert any("finished" in entry["detail"] for entry in told)
    set_level(None, _SCHEDULER)
    assert run_job() == []


def test_the_last_words_of_a_jvm_are_logged() -> None:
    """Output from before a halt is logged: log4j's line with traceback, and plain text."""
    with capture_logs() as entries:
        jvm = Jvm({**SparkSettings("local[1]").effective()})
        java: Any = jvm.gateway.jvm
        log4j = java.org.apache.logging.log4j.LogManager
        log4j.getLogger("my.Class").error(
            'a "quoted" line\nand another', java.java.lang.IllegalStateException("broken")
        )
        java.System.out.println("on standard output")
        java.System.err.println("on standard error")
        with pytest.raises(Exception, match=r".*"):
            java.java.lang.Runtime.getRuntime().halt(3)
        jvm.close(20)
    said = {entry["event"]: entry for entry in entries}
    assert said["spark_log"]["detail"] == 'a "quoted" line\nand another'
    assert said["spark_log"]["exception"].startswith(
        "java.lang.IllegalStateException: broken\n\tat"
    )
    lines = [entry["line"] for entry in entries if entry["event"] == "spark_output"]
    assert lines == ["on standard output", "on standard error"]
    assert jvm.process.returncode == 3
