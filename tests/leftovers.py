"""Ends what the tests started, however they end.

Each process of the tests has a watcher, and a variable that all that it starts inherits: daemons,
JVMs, sessions of their own, what those start. When the process is gone, also by SIGKILL, the
watcher kills all that have the variable. Run as a script, it is that watcher.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

#: Names the process of the tests that something belongs to. The innermost one's counts.
VARIABLE = "HEADRACE_TEST_PROCESS"

#: Seconds between two looks at the parent process: what it forked may hold the pipe open.
_PARENT_CHECK_S = 0.5

_PROCESSES = Path("/proc")


def watch() -> None:
    """End all that this process starts from now on along with it. Once in a process; Linux."""
    if not _PROCESSES.is_dir():
        return
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    reading, _writing = os.pipe()
    bare = {name: value for name, value in os.environ.items() if name != VARIABLE}
    null = os.open(os.devnull, os.O_RDWR)
    # a process that subprocess knows would be missed at the end of this one
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark],
        bare,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, reading, 0),
            (os.POSIX_SPAWN_DUP2, null, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
        ],
        setsid=True,
    )
    os.close(null)
    # the other end stays open until this process is gone
    os.close(reading)
    os.environ[VARIABLE] = mark


def main(owner: int, mark: str) -> None:
    """Wait for the owner's end, and kill what is left of what it started."""
    while os.getppid() == owner:
        ready, _, _ = select.select([sys.stdin], [], [], _PARENT_CHECK_S)
        if ready:
            break
    # what is killed may have started more meanwhile
    while left := _marked(f"{VARIABLE}={mark}".encode()):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(variable: bytes) -> list[int]:
    """Return the processes that have a variable; those that are dead have none."""
    found = []
    for each in _PROCESSES.iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                if variable in (each / "environ").read_bytes().split(b"\0"):
                    found.append(int(each.name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
