"""Sinks without Spark: what a channel that has no Spark imports with its sink."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("sink", ["delta", "jsonl", "kafka", "sql", "several"])
def test_a_sink_imports_no_spark(sink: str) -> None:
    """A process whose channels need no Spark does not import it for their sinks."""
    code = f"import sys, headrace.sinks.{sink}; print({{'pyspark', 'py4j'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
