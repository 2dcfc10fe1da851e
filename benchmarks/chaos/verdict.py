"""What a run has shown: its figures, and whether they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.repeats import summary
from benchmarks.chaos.schedule import Kind
from benchmarks.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.chaos.keyed import Counted
    from benchmarks.chaos.oracle import Conservation
    from benchmarks.chaos.repeats import Repeat

#: What a run must at least have had to count: faults a minute, and the share of the records that
#: the producer was to make.
_FAULTS_A_MINUTE = 3.0
_RATE_SHARE = 0.25
_MOVED_SHARE = 0.5

#: From this length on every kind of fault must have happened.
_EVERY_KIND_S = 600.0

#: What a member may end with: in order, or to be started afresh after something was down.
_EXPECTED_EXITS = frozenset({0, 3, 5, 70})


@dataclass(frozen=True, slots=True)
class Offsets:
    """What was seen of a channel's commits.

    ``commits`` counts them, ``backwards`` those lower than the one before. ``watched`` says that
    whoever looked did so to the end. ``fenced``: a former owner's commit must be refused.
    """

    commits: int
    backwards: int
    watched: bool
    fenced: bool


@dataclass(frozen=True, slots=True)
class Events:
    """What was done, and what became of the members meanwhile.

    ``exits`` are the codes that members ended with; ``unreturned`` names those that owned nothing
    for too long after a rolling restart. Both also for the time before the first hard fault.
    Of ``seconds`` the schedule ``waited`` for what had begun, when no fault was due.
    """

    seconds: float
    done: Counter[Kind]
    exits: Sequence[int]
    clean_exits: Sequence[int]
    unreturned: Sequence[str]
    clean_unreturned: Sequence[str]
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a run has left, by channel where that matters.

    ``clean`` are the duplicates before the first hard fault; ``transactional`` names the channels
    whose sinks keep offsets; ``counted`` has what is left where facts are counted by key;
    ``complete`` says that all was produced and stored; ``rate`` is in records a second, as it was
    to be.
    """

    seed: int
    rate: float
    complete: bool
    found: Mapping[str, Conservation]
    clean: Mapping[str, int]
    offsets: Mapping[str, Offsets]
    repeats: Mapping[str, Sequence[Repeat]]
    transactional: Sequence[str]
    events: Events
    counted: Mapping[str, Counted] = field(default_factory=dict)


def judge(evidence: Evidence) -> Report:
    """Return the figures; ``holds`` among them is the verdict."""
    must_not, floors = _must_not(evidence), _floors(evidence)
    events, found = evidence.events, evidence.found
    figures: dict[str, Any] = {
        "holds": not any(must_not.values()) and all(floors.values()),
        "seed": evidence.seed,
        "acknowledged": _acknowledged(evidence),
        **must_not,
        "claims_moved": sum(each.moved for each in found.values()),
        "claims": sum(each.claims for each in found.values()),
        "moves": sum(each.moves for each in found.values()),
        "faults": {kind.value: events.done[kind] for kind in Kind},
        "faults_a_minute": round(_faults_a_minute(events), 1),
        "records_a_second": round(_acknowledged(evidence) / events.seconds, 1),
        "seconds": round(events.seconds),
        "unreturned": len(events.unreturned),
        "below_floor": [name for name, met in floors.items() if not met],
        "commits_by_channel": {name: each.commits for name, each in evidence.offsets.items()},
        "backwards_by_channel": {name: each.backwards for name, each in evidence.offsets.items()},
        "clean_duplicates_by_channel": dict(evidence.clean),
        "by_channel": {name: asdict(each) for name, each in found.items()},
        "counted_by_channel": {name: asdict(each) for name, each in evidence.counted.items()},
        "repeats_by_channel": {name: summary(each) for name, each in evidence.repeats.items()},
        "exits": {str(code): n for code, n in sorted(Counter(events.exits).items())},
    }
    return Report("chaos", figures)


def _must_not(evidence: Evidence) -> dict[str, int]:
    """Count what must not happen."""
    events, found = evidence.events, evidence.found
    sure = [found[name] for name in evidence.transactional]
    return {
        "lost": sum(each.lost for each in found.values()),
        "unreadable": sum(each.unreadable for each in found.values()),
        "duplicated": sum(each.duplicated for each in sure),
        "duplicated_by_clean_events": sum(evidence.clean.values()),
        "disordered": sum(each.disordered for each in sure),
        "commits_backwards": sum(o.backwards for o in evidence.offsets.values() if o.fenced),
        "unexpected_exits": sum(code not in _EXPECTED_EXITS for code in events.exits),
        "bad_exits_by_clean_events": sum(code != 0 for code in events.clean_exits),
        "unreturned_by_clean_events": len(events.clean_unreturned),
        "miscounted": sum(each.miscounted for each in evidence.counted.values()),
        "wrong_rows": sum(each.wrong_rows for each in evidence.counted.values()),
    }


def _floors(evidence: Evidence) -> dict[str, bool]:
    """Return what a run must have had to prove anything, and whether it had it."""
    events, found, offsets = evidence.events, evidence.found, evidence.offsets
    moved = sum(each.moved for each in found.values())
    claims = sum(each.claims for each in found.values())
    rate = _acknowledged(evidence) / events.seconds
    return {
        "complete": evidence.complete,
        "faults_a_minute": _faults_a_minute(events) >= _FAULTS_A_MINUTE,
        "every_kind": events.seconds < _EVERY_KIND_S or set(events.done) == set(Kind),
        "rate": rate >= _RATE_SHARE * evidence.rate,
        "moved": moved >= _MOVED_SHARE * claims,
        "commits_seen": all(each.commits > 0 for each in offsets.values()),
        "rows_compared": all(each.rows > 0 for each in evidence.counted.values()),
        "offsets_watched": all(each.watched for each in offsets.values()),
    }


def _acknowledged(evidence: Evidence) -> int:
    return next(iter(evidence.found.values())).acknowledged


def _faults_a_minute(events: Events) -> float:
    return events.done.total() / (events.seconds - events.waited) * 60
