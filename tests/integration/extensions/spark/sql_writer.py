"""A process that writes through a SQL sink: against others, or killing itself at one step.

    python -m tests.integration.extensions.spark.sql_writer URL write ROUNDS
    python -m tests.integration.extensions.spark.sql_writer URL fight ROUNDS
    python -m tests.integration.extensions.spark.sql_writer URL steps

With ``copied`` at the end rows go to PostgreSQL by COPY, and to MariaDB by LOAD DATA, however few
they are.

Each micro-batch has one record of each of its partitions; each record becomes one row.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
import structlog

from headrace.core.records import TopicPartition
from headrace.extensions.sql.database import Database
from headrace.extensions.sql.loaders import copy, load
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = "written"
WRITTEN = sa.Table(
    TABLE,
    sa.MetaData(),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("offset", sa.Integer, nullable=False),
)
PARTITIONS = range(3)


def write(sink: SqlSink, numbers: list[int], step: Callable[[], None]) -> bool:
    """Process one micro-batch from plan to answer; False where another owner was first."""
    starts = {number: sink.stored_offset(f"id/{number}") or 0 for number in numbers}
    step()
    rows = pa.table({"partition": list(starts), "offset": list(starts.values())})
    staged = sink.stage(MicroBatch("one", "main", ()), rows)
    step()
    shares = [
        PartitionCommit(f"id/{number}", TopicPartition("t", number), start, start + 1)
        for number, start in starts.items()
    ]
    try:
        sink.commit(staged, shares)
    except CommitConflictError:
        sink.discard(staged)
        return False
    step()
    return True


def write_on(url: str, seed: str, rounds: int) -> int:
    """Write to whichever partitions chance says, as an owner would that knows nothing of others.

    Returns how often another one was first.
    """
    choice = random.Random(seed)
    sink = SqlSink(url, TABLE)
    sink.open()
    conflicts = 0
    for _ in range(rounds):
        numbers = choice.sample(PARTITIONS, choice.randint(1, 2))
        if write(sink, numbers, lambda: None):
            say("committed")
        else:
            conflicts += 1
    sink.close()
    return conflicts


def fight(url: str, rounds: int) -> None:
    """Fork three processes that write at the same time; say whether there were conflicts."""
    writers = []
    for seed in "abc":
        pid = os.fork()
        if pid == 0:
            os._exit(min(1, write_on(url, seed, rounds)))
        writers.append(pid)
    say(" ".join(str(os.waitpid(pid, 0)[1]) for pid in writers))


def say(*words: object) -> None:
    """Tell the test something, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Steps:
    """Counts what happens, and kills the process at one of the steps."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __call__(self, *_: Any, **__: Any) -> None:
        """One more step."""
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def watch(self, engine: sa.Engine) -> None:
        """Take a step before and after each statement, and each COMMIT."""
        sa.event.listen(engine, "before_cursor_execute", self)
        sa.event.listen(engine, "after_cursor_execute", self)
        real = engine.dialect.do_commit

        def commit(connection: Any) -> None:
            self()
            real(connection)
            self()

        engine.dialect.do_commit = commit  # type: ignore[method-assign,assignment]


def steps(url: str) -> None:
    """Fork one process after the other, each killed one step later than the one before.

    Prints what the rows and offsets are after each of them, until one gets to its end.
    """
    number = -1
    while True:
        number += 1
        pid = os.fork()
        if pid == 0:
            _run_until(url, number)
        _, status = os.waitpid(pid, 0)
        say(contents(url))
        if os.WIFEXITED(status):
            say("ended", os.WEXITSTATUS(status), number)
            return


def _run_until(url: str, number: int) -> None:
    step = Steps(number)
    sink = SqlSink(url, TABLE)
    sink.open()
    step.watch(sink._database.engine)
    done = write(sink, list(PARTITIONS)[:2], step)
    os._exit(0 if done else 1)


def contents(url: str) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return each partition's offset and all rows, with a sink and a reader of their own."""
    sink = SqlSink(url, TABLE)
    stored = {number: sink.stored_offset(f"id/{number}") or 0 for number in PARTITIONS}
    sink.close()
    database = Database(url)
    with database.transaction() as connection:
        found = connection.execute(sa.select(WRITTEN))
        rows = sorted((int(row[0]), int(row[1])) for row in found)
    database.close()
    return stored, rows


def whole(stored: dict[int, int], rows: list[tuple[int, int]]) -> bool:
    """Whether every offset below a stored one has one row, and no other row is there."""
    return rows == [(number, offset) for number in stored for offset in range(stored[number])]


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    url, what, *others = arguments
    if others[-1:] == ["copied"]:
        copy.FEWEST = load.FEWEST = 1
    match what:
        case "write":
            write_on(url, str(os.getpid()), int(others[0]))
        case "fight":
            fight(url, int(others[0]))
        case "steps":
            steps(url)


if __name__ == "__main__":
    main(sys.argv[1:])
