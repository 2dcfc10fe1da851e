"""The checks of what processes leave behind that write through SQL sinks, on any database."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa

from tests.integration.extensions.spark.sql_writer import WRITTEN, contents, whole

_ROOT = Path(__file__).resolve().parents[4]

#: Fewer cannot be: three of the test's own, and one before and after reading each of two offsets,
#: moving them, writing the rows, and the commit.
_STEPS = 3 + 2 * (2 + 2 + 1 + 1)

#: Seconds for processes that take half a minute where nothing else runs.
_WAIT = 300


def create(url: str) -> None:
    """Create the table that the processes write to."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        WRITTEN.create(connection)
    engine.dispose()


def _start(url: str, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.integration.extensions.spark.sql_writer",
        url,
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)


def assert_killed_at_every_step(url: str, *options: str) -> None:
    """Kill a writer at each of its steps: rows and offsets agree after every single one."""
    create(url)
    writer = _start(url, "steps", *options)
    *states, last = writer.communicate(timeout=_WAIT)[0].splitlines()

    assert writer.returncode == 0
    assert all(whole(*ast.literal_eval(state)) for state in states)
    ended, code, number = last.split()
    assert (ended, code) == ("ended", "0")
    assert int(number) >= _STEPS
    stored, _ = ast.literal_eval(states[-1])
    assert stored[0] == stored[1] > 1
    assert stored[2] == 0


def assert_fights_store_each_offset_once(url: str, rounds: int) -> None:
    """Three processes commit overlapping ranges at the same time: each range is stored once."""
    create(url)
    writers = _start(url, "fight", str(rounds))

    statuses = [
        int(word) for word in writers.communicate(timeout=_WAIT)[0].splitlines()[-1].split()
    ]

    conflict = 1 << 8  # as wait has exit code 1
    assert {*statuses} <= {0, conflict}
    assert conflict in statuses
    assert whole(*contents(url))


def assert_killed_at_any_moment(url: str, times: int) -> None:
    """A writer killed again and again, wherever it is, loses no range and doubles none."""
    create(url)
    for _ in range(times):
        writer = _start(url, "write", "100000")
        assert writer.stdout is not None
        for _ in range(3):
            assert writer.stdout.readline() == "committed\n"
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=30)
        assert whole(*contents(url))

    assert sum(contents(url)[0].values()) >= 3 * times
