"""What happens when: the phases of the demo, each left when a fact is there, and what is shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.core.clock import SYSTEM_CLOCK
from headrace.ops.demo.flights import DemoError, members_of, rows_in, since, take_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from headrace.extensions.delta.reader import TableCommit
    from headrace.ops.demo.flights import RunRecord


P = TypeVar("P", bound=Enum)

#: Seconds that the production takes at least.
SECONDS = 40.0

#: A turn that took longer than this many seconds, because the machine was busy, is not made up for.
_LONGEST_STEP = 1.0


class Gate(Enum):
    """How much of the flights, as a share, may be produced until the gate is opened."""

    CLOSED = 0.0
    """Nothing: no daemon is ready."""

    BEFORE_KILL = 0.6
    """Below the highest share at which the kill may happen: the table cannot run past it."""

    BEFORE_RETURN = 0.85
    """The rest is for when the killed daemon is back, so that it has something to commit."""

    OPEN = 1.0
    """Everything."""


class Pace:
    """Spreads ``total`` records evenly over at least ``seconds``; time at a gate is extra."""

    def __init__(self, total: int, seconds: float = SECONDS) -> None:
        self.total = total
        self.produced = 0
        self._rate = total / seconds if seconds > 0 else float("inf")
        self._credit = 0.0

    def due(self, elapsed: float, gate: Gate) -> int:
        """Return how many records to produce now, ``elapsed`` seconds after the last call."""
        limit = round(self.total * gate.value)
        room = limit - self.produced
        if room <= 0 or elapsed <= 0:
            return 0
        self._credit = min(self._credit + self._rate * min(elapsed, _LONGEST_STEP), room)
        count = int(self._credit)
        self._credit = 0.0 if count == room else self._credit - count
        self.produced += count
        return count


#: Seconds between two plain lines.
_PLAIN_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member's line: what it holds, and its work over all its lives."""

    name: str
    state: str
    partitions: frozenset[int]
    lag: int
    batches: int
    spark_seconds: float
    commits: int


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is shown at one moment. ``stored`` counts rows in the table.

    ``phase`` is a member of an enum whose values are sentences, ``engine`` what members work with.
    """

    phase: Enum
    seconds: float
    total: int
    produced: int
    stored: int
    members: Sequence[MemberView]
    engine: str = "Spark"

    @property
    def summary(self) -> str:
        """The records in one line."""
        share = self.stored / self.total
        return (
            f"{self.produced} of {self.total} records produced, {self.stored} in the table "
            f"({share:.0%}), lag {max(0, self.produced - self.stored)}"
        )


def say(console: Console, *lines: str) -> None:
    """Print lines as they are: not wrapped, not coloured, brackets left alone."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@final
class DemoProgress:
    """Shows views as they come. A context manager, because a live display has to be ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._phase: Enum | None = None
        self._due = 0.0

    def show(self, view: View) -> None:
        """Bring the display up to date."""
        if view.phase is not self._phase:
            self._phase = view.phase
            say(self._console, f"{view.seconds:4.0f} s  {view.phase.value}")
        if self._live is not None:
            self._live.update(_table(view), refresh=True)
        elif SYSTEM_CLOCK.monotonic() >= self._due:
            self._due = SYSTEM_CLOCK.monotonic() + _PLAIN_EVERY
            say(self._console, _line(view))

    def __enter__(self) -> DemoProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _table(view: View) -> Group:
    table = Table(box=None, pad_edge=False)
    for name in ("daemon", "state", "partitions"):
        table.add_column(name)
    for name in ("lag", "batches", f"{view.engine} time", "commits"):
        table.add_column(name, justify="right")
    for member in view.members:
        table.add_row(
            member.name,
            member.state,
            _numbers(member.partitions),
            str(member.lag),
            str(member.batches),
            f"{member.spark_seconds:.1f} s",
            str(member.commits),
        )
    return Group(Text(f"{view.seconds:4.0f} s  {view.summary}"), table)


def _line(view: View) -> str:
    members = (
        f"{each.name} ({each.state}): partitions {_numbers(each.partitions)}, lag {each.lag}, "
        f"{each.batches} batches, {view.engine} {each.spark_seconds:.1f} s, {each.commits} commits"
        for each in view.members
    )
    return " | ".join([f"{view.seconds:4.0f} s  {view.summary}", *members])


def _numbers(partitions: frozenset[int]) -> str:
    return " ".join(map(str, sorted(partitions))) or "-"


#: The kill happens while the table has between these shares of the rows.
KILL_FROM, KILL_TO = 0.4, 0.7


class DemoPhase(Enum):
    """Where the demo is."""

    STARTING = "the daemons start and share the partitions"
    """Spark starts twice; nothing is produced yet."""

    FLOWING = "both daemons work"
    """Until both have committed and enough rows are in."""

    TAKING_OVER = "one daemon was killed, the other takes over"
    """Until the other one has committed on a partition of the killed one."""

    RETURNING = "the killed daemon was started again"
    """Until it holds partitions again."""

    FINISHING = "both daemons work again, on the rest"
    """Until every row is in."""

    DONE = "everything is in the table"
    """Nothing is left to wait for."""


#: How much may be produced in each phase, and the seconds that a phase may take: several times what
#: it takes on two busy cores. Spark's start is 10 s at best and was seen to take 40 s.
_LIMITS = {
    "STARTING": (Gate.CLOSED, 240.0),
    "FLOWING": (Gate.BEFORE_KILL, 300.0),
    "TAKING_OVER": (Gate.BEFORE_RETURN, 120.0),
    "RETURNING": (Gate.BEFORE_RETURN, 240.0),
    "FINISHING": (Gate.OPEN, 300.0),
    "DONE": (Gate.OPEN, None),
}


def gates(phases: type[P]) -> dict[P, Gate]:
    """Return how much may be produced in each phase of a demo."""
    return {phase: _LIMITS[phase.name][0] for phase in phases}


def patience(phases: type[P]) -> dict[P, float]:
    """Return the seconds that each phase of a demo may take; the last one has no entry."""
    limits = ((phase, _LIMITS[phase.name][1]) for phase in phases)
    return {phase: seconds for phase, seconds in limits if seconds is not None}


def next_phase(
    phase: DemoPhase,
    commits: Sequence[TableCommit],
    holdings: Mapping[str, frozenset[int]],
    record: RunRecord,
    partitions: int,
) -> DemoPhase:
    """Return the phase that the facts lead to: the same one, or the one after it.

    The facts are the table's log, and who holds which partitions.

    Raises:
        DemoError: everything is in the table, and a member had no part in it after the restart.
    """
    match phase:
        case DemoPhase.STARTING if _shared(holdings, record, partitions):
            return DemoPhase.FLOWING
        case DemoPhase.FLOWING if may_kill(commits, record):
            return DemoPhase.TAKING_OVER
        case DemoPhase.TAKING_OVER if record.kill and take_over(commits, record.kill):
            return DemoPhase.RETURNING
        case DemoPhase.RETURNING if _shared(holdings, record, partitions):
            return DemoPhase.FINISHING
        case DemoPhase.FINISHING if rows_in(commits) >= record.rows:
            _require_all(commits, record)
            return DemoPhase.DONE
        case _:
            return phase


def may_kill(commits: Sequence[TableCommit], record: RunRecord) -> bool:
    """Whether every member has committed and the table has the right share of the rows."""
    share = rows_in(commits) / record.rows
    return members_of(commits) >= set(record.members) and KILL_FROM <= share <= KILL_TO


def _shared(holdings: Mapping[str, frozenset[int]], record: RunRecord, partitions: int) -> bool:
    """Whether every partition is held, and every member holds one."""
    held = [holdings.get(name, frozenset()) for name in record.members]
    return all(held) and frozenset().union(*held) == frozenset(range(partitions))


def _require_all(commits: Sequence[TableCommit], record: RunRecord) -> None:
    assert record.restart_version is not None, "the restart comes before the end"
    idle = set(record.members) - members_of(since(commits, record.restart_version))
    if idle:
        raise DemoError(f"{' and '.join(sorted(idle))} committed nothing after the restart")
