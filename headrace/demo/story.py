"""What happens when: the phases of the demo, each left when a fact is there, not after a while."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.demo.errors import DemoError
from headrace.demo.pace import Gate
from headrace.demo.record import members_of, rows_in, since, take_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.demo.record import RunRecord
    from headrace.spark.sinks.delta.reader import TableCommit

#: The kill happens while the table has between these shares of the rows.
KILL_FROM, KILL_TO = 0.4, 0.7


class Phase(Enum):
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


#: How much may be produced in each phase.
GATES = {
    Phase.STARTING: Gate.CLOSED,
    Phase.FLOWING: Gate.BEFORE_KILL,
    Phase.TAKING_OVER: Gate.BEFORE_RETURN,
    Phase.RETURNING: Gate.BEFORE_RETURN,
    Phase.FINISHING: Gate.OPEN,
    Phase.DONE: Gate.OPEN,
}

#: Seconds that a phase may take: several times what it takes on two busy cores. Spark's start is
#: 10 s at best and was seen to take 40 s.
PATIENCE = {
    Phase.STARTING: 240.0,
    Phase.FLOWING: 300.0,
    Phase.TAKING_OVER: 120.0,
    Phase.RETURNING: 240.0,
    Phase.FINISHING: 300.0,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known from outside at one moment: the table's log, and who holds which partitions."""

    commits: Sequence[TableCommit]
    holdings: Mapping[str, frozenset[int]]


def next_phase(phase: Phase, facts: Facts, record: RunRecord, partitions: int) -> Phase:
    """Return the phase that the facts lead to: the same one, or the one after it.

    Raises:
        DemoError: everything is in the table, and a member had no part in it after the restart.
    """
    match phase:
        case Phase.STARTING if _shared(facts, record, partitions):
            return Phase.FLOWING
        case Phase.FLOWING if may_kill(facts.commits, record):
            return Phase.TAKING_OVER
        case Phase.TAKING_OVER if record.kill and take_over(facts.commits, record.kill):
            return Phase.RETURNING
        case Phase.RETURNING if _shared(facts, record, partitions):
            return Phase.FINISHING
        case Phase.FINISHING if rows_in(facts.commits) >= record.rows:
            _require_all(facts.commits, record)
            return Phase.DONE
        case _:
            return phase


def may_kill(commits: Sequence[TableCommit], record: RunRecord) -> bool:
    """Whether every member has committed and the table has the right share of the rows."""
    share = rows_in(commits) / record.rows
    return members_of(commits) >= set(record.members) and KILL_FROM <= share <= KILL_TO


def _shared(facts: Facts, record: RunRecord, partitions: int) -> bool:
    """Whether every partition is held, and every member holds one."""
    held = [facts.holdings.get(name, frozenset()) for name in record.members]
    return all(held) and frozenset().union(*held) == frozenset(range(partitions))


def _require_all(commits: Sequence[TableCommit], record: RunRecord) -> None:
    assert record.restart_version is not None, "the restart comes before the end"
    idle = set(record.members) - members_of(since(commits, record.restart_version))
    if idle:
        raise DemoError(f"{' and '.join(sorted(idle))} committed nothing after the restart")
