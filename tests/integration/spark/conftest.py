"""One Spark session for all tests; a test that harms it starts its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.clock import Deadline
from headrace.spark.runtime import SparkRuntime
from headrace.spark.settings import SparkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Two tasks, so that chunks and shuffles are real; hardly any warm-up, so that tests start soon.
SETTINGS = SparkSettings("local[2]", warm_up=1)


@pytest.fixture(scope="session")
def spark_runtime() -> Iterator[SparkRuntime]:
    """A started runtime."""
    runtime = SparkRuntime(SETTINGS)
    runtime.start()
    yield runtime
    runtime.stop(Deadline.after(30))
