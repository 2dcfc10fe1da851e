"""The pace and the gates of a demo by its phases, and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


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

    def due(self, elapsed: float, gate: Gate, most: int | None = None) -> int:
        """Return how many records to produce now, ``elapsed`` seconds after the last call.

        ``most`` is how many there may be in all by now, None where only the gate says that.
        """
        limit = round(self.total * gate.value)
        limit = limit if most is None else min(limit, most)
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
