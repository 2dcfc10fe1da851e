"""A Spark processor to try."""

from __future__ import annotations

import pytest

from tests.unit.processors.spark_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """A processor with the usual limits."""
    return Bench()
