"""The counts of operators: how many rows came, and what became of those that are not in a result.

An operator has those that can happen to it: only windows close, and only a left or an outer join
tells a row alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.extensions.streams.operators import (
    Aggregate,
    Join,
    KeyBy,
    Lookup,
    Named,
    Reduce,
    StreamJoin,
    TableJoin,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.extensions.streams.operators import Operator

#: Rows that came to an operator; of a table, its changes.
RECORDS: Final = "records"

#: Rows that came when their windows, or their own time in a join, and the grace were over.
LATE: Final = "late"

#: Rows without a partner that came out of a left or an outer join.
ALONE: Final = "alone"

#: Windows of keys that are over.
CLOSED: Final = "closed"

#: Rows without a value, which an operator leaves out, or of which a lookup has no key.
SKIPPED: Final = "skipped"


_OUTER = (Join.LEFT, Join.OUTER)


def counts_of(operator: Operator) -> tuple[str, ...]:
    """Return what is counted of an operator, nothing of one without a state or a table.

    A change of key has none: its topic's records are counted by the part that reads it.
    """
    counts: tuple[str, ...] = ()
    match operator:
        case KeyBy():
            pass
        case Aggregate():
            counts = (RECORDS, SKIPPED, *(() if operator.windows is None else (LATE, CLOSED)))
        case StreamJoin():
            counts = (RECORDS, SKIPPED, LATE)
        case Lookup() | Reduce():
            counts = (RECORDS, SKIPPED)
        case Named():
            counts = (RECORDS,)
    is_outer = isinstance(operator, StreamJoin | Lookup | TableJoin) and operator.join in _OUTER
    return (*counts, ALONE) if is_outer else counts


class OperatorCounts:
    """The counts of a channel's operators in a micro-batch, by the operators' names. One thread."""

    def __init__(self) -> None:
        self._found: dict[str, Counter[str]] = {}

    def add(self, operator: Operator, **counts: int) -> None:
        """Add to the counts of an operator with a name; what it has not is left out."""
        name, own = operator.own_name, counts_of(operator)
        assert name is not None, "what is counted has a name"
        added = {count: number for count, number in counts.items() if count in own and number}
        if added:
            self._found.setdefault(name, Counter()).update(added)

    def by_name(self) -> Mapping[str, Mapping[str, int]]:
        """Return what was counted; what is 0 is left out."""
        return self._found
