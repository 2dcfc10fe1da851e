"""Which process a number means: a pid together with the moment that process began."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


class ProcessState(Enum):
    """What a process is doing, as far as signals are concerned."""

    RUNNING = "running"
    """It runs or could run."""

    PAUSED = "paused"
    """It was stopped by a signal and waits for SIGCONT."""

    GONE = "gone"
    """It has ended; its pid may belong to another process by now."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, told apart from a later one with the same pid by when it started.

    ``started`` is the operating system's own notation and only good for comparing.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of the process that has this pid now, None if there is none."""
        facts = _facts(pid)
        return None if facts is None else cls(pid, facts[1])

    @property
    def state(self) -> ProcessState:
        """What this very process does now. A zombie counts as gone."""
        facts = _facts(self.pid)
        if facts is None or facts[1] != self.started:
            return ProcessState.GONE
        return ProcessState.PAUSED if facts[0] in "Tt" else ProcessState.RUNNING

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False if it is gone and nothing was sent."""
        if self.state is ProcessState.GONE:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _facts(pid: int) -> tuple[str, str] | None:
    """Return (state letter, start) of a live process."""
    facts = _facts_from_proc(pid) if Path("/proc/self/stat").exists() else _facts_from_ps(pid)
    return None if facts is None or facts[0] in "ZX" else facts


def _facts_from_proc(pid: int) -> tuple[str, str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command in parentheses may hold anything; what follows the last one is plain. There,
    # the state comes first and the start time in clock ticks since boot is the twentieth.
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def _facts_from_ps(pid: int) -> tuple[str, str] | None:
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 - ps has no one place
        capture_output=True,
        check=False,
        text=True,
        timeout=10,
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return (state[0], started.strip()) if state else None
