"""What happens when: the phases of the demo, each left when a fact is there."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from examples.demo.record import members_of, rows_in, since, take_over
from examples.harness.flights import DemoError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from examples.demo.record import RunRecord
    from headrace.extensions.delta.reader import TableCommit

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
