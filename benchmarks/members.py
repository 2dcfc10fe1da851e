"""Real daemons as members of one group, and what each of them noted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.notes import Notes
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.server import ServerProcess
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.notes import Note
    from headrace.devstack import LocalStack

#: Seconds that the members of a group may take for anything that is waited for.
PATIENCE = 60.0

#: Seconds in which nothing may have changed before a group counts as being at rest: longer than
#: the delay from a change in the group to the first move.
_REST = 1.5

#: How much of a log an error message quotes.
_QUOTED_LINES = 15

_ROOT = Path(__file__).parents[1]


class Member:
    """One daemon with a folder of its own. For one thread."""

    def __init__(
        self, servers: LocalStack, topic: str, name: str, session: float, options: dict[str, Any]
    ) -> None:
        self.name = name
        folder = servers.directory / "members" / topic / name
        folder.mkdir(parents=True)
        file = folder / "notes"
        self._notes = Notes(file)
        self._log = folder / "daemon.log"
        self._process: ServerProcess | None = None
        self.started = 0.0
        self._path = stack.configuration(
            folder,
            stack.addresses(servers),
            {
                "topics": [topic],
                "group": topic,
                "batch": {"max_records": 1, "linger": 0},
                "processor": {
                    "type": "custom",
                    "factory": "benchmarks.coordination_probe:ProbeProcessor",
                    "options": {"file": str(file), **options},
                },
            },
            instance_id=name,
            python_path=[str(_ROOT)],
            zookeeper={"hosts": servers.zookeeper_hosts, "session_timeout": f"{session}s"},
            logging={"level": "info", "format": "json"},
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process is not None, "it was started"
        return self._process.identity.pid

    def start(self) -> None:
        """Start the process; it is ready when it notes so."""
        command = [sys.executable, "-m", "headrace", "run", "-c", str(self._path)]
        self.started = SYSTEM_CLOCK.monotonic()
        self._process = ServerProcess.start(
            command,
            log_file=self._log,
            deadline=Deadline.after(PATIENCE),
            environment={"PYTHONPATH": str(_ROOT)},
        )

    def kill(self) -> float:
        """End the process with SIGKILL, and return when; harmless without one."""
        at = SYSTEM_CLOCK.monotonic()
        if self._process is not None:
            self._process.kill()
            self._process = None
        return at

    def stop(self) -> float:
        """Stop the process in order, and return when it was asked to.

        Raises:
            AssertionError: it did not end with code 0.
        """
        assert self._process is not None, "it was started"
        at = SYSTEM_CLOCK.monotonic()
        code = self._process.stop(Deadline.after(PATIENCE))
        self._process = None
        if code:
            raise AssertionError(f"{self.name} ended with code {code}; see {self._log}")
        return at

    def notes(self) -> list[Note]:
        """Return what it has noted so far, over all its lives."""
        return self._notes.all()

    def since(self, at: float, event: str) -> list[Note]:
        """Return the notes of one event from a moment on."""
        return self._notes.since(at, event)

    def ready(self) -> float:
        """Wait until the started process is ready to connect, and return when that was."""
        await_true(lambda: bool(self.since(self.started, "ready")), f"{self.name} to be ready")
        return self.since(self.started, "ready")[0].at

    def held(self) -> set[int]:
        """Return the partitions that the present process delivers from, by its notes."""
        if self._process is None:
            return set()
        held: set[int] = set()
        for note in self.notes():
            if note.pid != self.pid or note.partition is None:
                continue
            if note.event == "delivered":
                held.add(note.partition)
            elif note.event in {"terminated", "lost"}:
                held.discard(note.partition)
        return held

    def end_of_log(self) -> str:
        """Return the last lines of the daemon's log, below its name."""
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return "\n".join([f"the end of {self._log}:", *text.splitlines()[-_QUOTED_LINES:]])


def await_shares(members: Sequence[Member], shares: Sequence[int]) -> None:
    """Wait until the members deliver from so many partitions each, and that stays so.

    Raises:
        AssertionError: it did not come to that.
    """
    reached_at = 0.0
    reached: list[set[int]] = []

    def at_rest() -> bool:
        nonlocal reached_at, reached
        now, held = SYSTEM_CLOCK.monotonic(), [member.held() for member in members]
        if held != reached or [len(each) for each in held] != list(shares):
            reached_at, reached = now, held
        return now - reached_at > _REST

    if not wait_for(at_rest, Deadline.after(PATIENCE)):
        have = ", ".join(f"{m.name} {sorted(m.held())}" for m in members)
        logs = "\n".join(member.end_of_log() for member in members)
        raise AssertionError(f"{logs}\nthe members should have {list(shares)}; they have {have}")


def await_true(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it did not come true in time.
    """
    if not wait_for(condition, Deadline.after(PATIENCE)):
        raise AssertionError(f"waited in vain for {what}")
