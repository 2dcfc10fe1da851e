"""What is seen while the demo runs: a table on a terminal, elsewhere a line now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console

    from headrace.demo.story import Phase

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
    """Everything that is shown at one moment. ``stored`` counts rows in the table."""

    phase: Phase
    seconds: float
    total: int
    produced: int
    stored: int
    members: Sequence[MemberView]

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
class Progress:
    """Shows views as they come. A context manager, because a live display has to be ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._phase: Phase | None = None
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

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()


def _table(view: View) -> Group:
    table = Table(box=None, pad_edge=False)
    for name in ("daemon", "state", "partitions"):
        table.add_column(name)
    for name in ("lag", "batches", "Spark time", "commits"):
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
        f"{each.batches} batches, Spark {each.spark_seconds:.1f} s, {each.commits} commits"
        for each in view.members
    )
    return " | ".join([f"{view.seconds:4.0f} s  {view.summary}", *members])


def _numbers(partitions: frozenset[int]) -> str:
    return " ".join(map(str, sorted(partitions))) or "-"
