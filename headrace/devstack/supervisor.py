"""Holds one server process and ends it when its owner is gone, however the owner ended.

Run as a script, ``python -I -S supervisor.py OWNER_PID COMMAND...``: it starts the command, prints
its pid on standard output and ends with its exit code (128 + n if signal n killed it). The owner
is gone when standard input ends or the parent process changes; the command is killed then. Two
signs, because a process that the owner forked may hold the pipe open, and because a parent's end
is only noticed by asking. On Linux the command also dies with a killed supervisor.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Seconds between two looks at the parent process, for the case that the pipe does not tell.
_PARENT_CHECK_S = 0.5

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the command to its end or to the owner's, and return the exit code."""
    owner, command = int(arguments[0]), arguments[1:]
    signal.signal(signal.SIGTERM, _exit)
    woken = _wake_on_child()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        preexec_fn=_die_with_supervisor(),  # noqa: PLW1509 - this process has one thread
    )
    try:
        sys.stdout.write(f"{child.pid}\n")
        sys.stdout.flush()
        _watch(child, owner, woken)
    finally:
        child.kill()
        code = child.wait()
    return 128 - code if code < 0 else code


def _watch(child: subprocess.Popen[bytes], owner: int, woken: int) -> None:
    """Block until the child has ended or the owner is gone."""
    owner_pipe = sys.stdin.fileno()
    while child.poll() is None and os.getppid() == owner:
        ready, _, _ = select.select([owner_pipe, woken], [], [], _PARENT_CHECK_S)
        if woken in ready:
            os.read(woken, 4096)
        if owner_pipe in ready and not os.read(owner_pipe, 4096):
            return


def _wake_on_child() -> int:
    """Return a file descriptor that becomes readable when a child changes its state."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, _ignore)
    return reading


def _die_with_supervisor() -> Callable[[], None] | None:
    """Return what a child on Linux does first. Tied to this thread: there is only the one."""
    if sys.platform != "linux":
        return None
    prctl, supervisor = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)

    return prepare


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _ignore(_number: int, _: FrameType | None) -> None:
    """Ignore the signal; only a handled signal reaches the wake-up descriptor."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
