from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pathlib import Path

#: Each process commits one row, or two results of one row at once, to whichever of the shared
#: partitions it likes, as an owner would that does not know of the others.
_WRITER = """
import random, sys
import pyarrow as pa, pyarrow.parquet as pq, structlog
from pyspark.sql.types import LongType, StructField, StructType
from headrace.core.records import TopicPartition
from headrace.sinks.contract import CommitConflictError, PartitionCommit
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.staging import StagedFiles, staged_files

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
folder, seed, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = ("partition", "offset")
schema = StructType([StructField(name, LongType()) for name in names]).json()
choice = random.Random(seed)
sink = DeltaSink(folder)
sink.open()
conflicts = 0
for turn in range(rounds):
    numbers = choice.sample(range(3), choice.randint(1, 2))
    starts = {number: sink.stored_offset(f"id/{number}") or 0 for number in numbers}
    staged = []
    for behind in range(choice.randint(1, 2)):
        name = f"{seed}-{turn}-{behind}"
        own = sink._staging.own / name
        own.mkdir(parents=True)
        offsets = [start + behind for start in starts.values()]
        rows = pa.table({"partition": list(starts), "offset": offsets})
        pq.write_table(rows, own / "part-0.snappy.parquet")
        staged.append(StagedFiles(name, own, schema, staged_files(own)))
    try:
        sink.commit_all(staged, [
            PartitionCommit(f"id/{n}", TopicPartition("t", n), start, start + len(staged))
            for n, start in starts.items()
        ])
        print("committed", flush=True)
    except CommitConflictError:
        for each in staged:
            sink.discard(each)
        conflicts += 1
sink.close()
print(conflicts)
"""


def _start(folder: Path, seed: str, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(folder), seed, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _assert_exactly_once(folder: Path) -> None:
    """Every offset below the stored one has one row, and no other row is there."""
    table = DeltaTable(folder)
    rows = table.to_pyarrow_table().to_pydict()
    found = Counter(zip(rows["partition"], rows["offset"], strict=True))
    stored = {number: table.transaction_version(f"id/{number}") or 0 for number in range(3)}
    expected = {(number, offset) for number in range(3) for offset in range(stored[number])}
    assert set(found) == expected
    assert set(found.values()) == {1}


def test_processes_that_fight_over_partitions_store_each_offset_once(tmp_path: Path) -> None:
    """Three processes commit overlapping ranges at the same time: each range is stored once."""
    writers = [_start(tmp_path / "table", seed, 25) for seed in "abc"]

    outputs = [writer.communicate(timeout=100)[0] for writer in writers]

    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert sum(int(output.split()[-1]) for output in outputs) > 0
    _assert_exactly_once(tmp_path / "table")


def test_a_process_killed_at_any_moment_leaves_a_whole_table(tmp_path: Path) -> None:
    """A writer killed again and again, wherever it is, loses no range and doubles none."""
    folder = tmp_path / "table"
    for seed in "abcde":
        writer = _start(folder, seed, 10_000)
        assert writer.stdout is not None
        for _ in range(3):
            assert writer.stdout.readline() == "committed\n"
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=30)

    last = _start(folder, "f", 3)
    last.communicate(timeout=60)

    assert last.returncode == 0
    _assert_exactly_once(folder)
