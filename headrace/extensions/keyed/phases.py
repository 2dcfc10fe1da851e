"""Keys by phase: what a reducer says of each state, counted as states are committed."""

from __future__ import annotations

from collections import Counter
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from headrace.core.user_text import describe_error
from headrace.extensions.keyed.api import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.extensions.keyed.api import Phases
    from headrace.extensions.keyed.row import KeyRow

log = structlog.get_logger(__name__)

#: The phase of a state of which the reducer cannot say one, or says one that it does not declare.
UNKNOWN = "unknown"

_UNKNOWN_PHASE = Phase(UNKNOWN)


class PhaseTotals(NamedTuple):
    """Keys by phase. ``since`` has the oldest (seconds since the epoch) of each with an age."""

    keys: Mapping[str, int]
    since: Mapping[str, int]
    amounts: Sequence[int]


class Tally:
    """Keys by phase, or what is added to them. For one thread at a time.

    Ages are kept by the second: as many numbers as there are seconds in which a key that has one
    began, however many keys there are.
    """

    __slots__ = ("_amounts", "_keys", "_since")

    def __init__(self) -> None:
        self._keys: Counter[str] = Counter()
        self._amounts: Sequence[int] = ()
        self._since: dict[str, Counter[int]] = {}

    def add(self, phase: Phase | None, sign: int) -> None:
        """Add a key, or with -1 take it away; None is no key."""
        if phase is None:
            return
        self._keys[phase.name] += sign
        if phase.amounts:
            self._amounts = summed(self._amounts, [sign * each for each in phase.amounts])
        if phase.since is not None:
            self._add_since(phase.name, phase.since // 1000, sign)

    def _add_since(self, name: str, second: int, count: int) -> None:
        seconds = self._since.setdefault(name, Counter())
        seconds[second] += count
        if not seconds[second]:
            del seconds[second]

    def merge(self, more: Tally) -> None:
        """Add what another one has."""
        self._keys.update(more._keys)
        self._amounts = summed(self._amounts, more._amounts)
        for name, seconds in more._since.items():
            for second, count in seconds.items():
                self._add_since(name, second, count)

    def totals(self) -> PhaseTotals:
        """Return what there is."""
        since = {name: min(seconds) for name, seconds in self._since.items() if seconds}
        return PhaseTotals(self._keys, since, self._amounts)


def totals_of(tallies: Iterable[Tally]) -> PhaseTotals:
    """Return the sum of several."""
    keys: Counter[str] = Counter()
    amounts: Sequence[int] = ()
    since: dict[str, int] = {}
    for each in tallies:
        own = each.totals()
        keys.update(own.keys)
        amounts = summed(amounts, own.amounts)
        for name, first in own.since.items():
            since[name] = min(first, since.get(name, first))
    return PhaseTotals(keys, since, amounts)


def summed(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the sums of numbers in the same order; none is zeros."""
    return list(map(add, one, other)) if one and other else list(one or other)


def named(names: Sequence[str], numbers: Sequence[int]) -> dict[str, int]:
    """Return numbers by their names; none is zeros."""
    return dict(zip(names, numbers or [0] * len(names), strict=True))


class PhaseReader:
    """Says which phase a stored row is in, as a reducer's ``phases`` say. Any thread.

    What they fail for counts as :data:`UNKNOWN`, and the first one is logged: a commit that the
    brokers have is not to fail for what is only counted.
    """

    def __init__(self, group: str, phases: Phases, read_state: Callable[[bytes], Any]) -> None:
        self._group = group
        self._phases = phases
        self._read_state = read_state
        self._names = frozenset(phases.names)
        self._is_logged = False

    def __call__(self, row: KeyRow) -> Phase | None:
        """Return the phase of a row, None of one without a state."""
        if row.state is None:
            return None
        phases = self._phases
        try:
            name, since, *numbers = phases.of(self._read_state(row.state))
            amounts, counts = (tuple(map(int, each)) for each in numbers)
            if len(amounts) != len(phases.amounts) or len(counts) != len(phases.counts):
                reason = (
                    f"there are {len(amounts)} amounts and {len(counts)} counts, and "
                    f"{len(phases.amounts)} and {len(phases.counts)} names of them"
                )
            elif name in self._names:
                return Phase(name, None if since is None else int(since), amounts, counts)
            else:
                reason = f"{name!r} is none of its phases, which are {', '.join(phases.names)}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a user's function, or of an unreadable state
            reason = describe_error(error)
        if not self._is_logged:
            self._is_logged = True
            log.warning("phase_unknown", group=self._group, reason=reason)
        return _UNKNOWN_PHASE
