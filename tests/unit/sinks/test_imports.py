"""Sinks without Spark: what a channel that has no Spark imports with its sink."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.extensions.sql.sql_tables import Base

#: Opens a sink on what the first argument names, and commits a row through it.
_COMMIT = """
import sys
from pathlib import Path
import pyarrow as pa
from pyarrow import csv
from headrace.core.records import TopicPartition
from headrace.sinks.contract import PartitionCommit
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import WriteMode
from headrace.testing.sinks import micro_batch

sink = eval(sys.argv[2])
sink.open()
before = "pandas" in sys.modules
share = PartitionCommit("id/0", TopicPartition("t", 0), 0, 1)
rows = csv.read_csv(pa.BufferReader(b"id,name\\n1,a\\n"))  # of Python's objects Arrow needs it
sink.commit(sink.stage(micro_batch("one", [share]), rows), [share])
print(before, "pandas" in sys.modules)
"""


@pytest.mark.parametrize(
    "sink",
    ["extensions.delta", "extensions.sql", "sinks.jsonl", "sinks.kafka", "sinks.several"],
)
def test_a_sink_imports_no_spark(sink: str) -> None:
    """A process whose channels need no Spark does not import it for their sinks."""
    code = f"import sys, headrace.{sink}; print({{'pyspark', 'py4j'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("sink", "needs_it"),
    [
        ("DeltaSink(Path(sys.argv[1] + '.table'))", False),
        ("DeltaSink(Path(sys.argv[1] + '.table'), partition_by=['name'])", True),
        ("SqlSink('sqlite:///' + sys.argv[1], 't')", False),
        ("SqlSink('sqlite:///' + sys.argv[1], 't', mode=WriteMode.UPSERT, key=['id'])", True),
    ],
)
def test_pandas_is_imported_by_the_open_of_a_sink_that_needs_it(
    base: Base, sink: str, *, needs_it: bool
) -> None:
    """The import takes a second or more, for which the first commit would wait."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMIT, str(base.path), sink],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{needs_it} {needs_it}\n"
