"""The groups of the collector's demo, made of flights; their events; and what has to come of them.

A group has the flights of an airport that were to leave in the same hour. Each that lands is done,
each that was cancelled or never landed has failed. Some groups lose the event of a flight on
purpose, and have to time out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from headrace.apps.collector.commands import create_event, done_event
from headrace.apps.collector.events import FAILURE, SUCCESS, timed_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.random import Generator

#: Seconds that a group has that loses an event, and those that have to wait for a daemon's restart.
LOST_TTL, TTL = 5, 3600

#: The shares of groups that lose an event, of groups that are created after some of their flights
#: have landed, and of events that come twice.
LOST, ORPHANED, TWICE = 0.03, 0.05, 0.03

#: By how much of all events one may come late, and the least number.
_WINDOW, _LEAST_WINDOW = 0.002, 20

_SEED = 2013

#: The flights of a group have these in common.
_KEY = ["origin", "month", "day", "hour"]

CANCELLED = "cancelled"
NOT_LANDED = "did not land"


class Fate(Enum):
    """What has to become of a group."""

    SUCCESS = "succeeded"
    """All of its flights have landed."""

    FAILURE = "failed"
    """One of its flights was cancelled or did not land."""

    TIMEOUT = "timed out"
    """The event of a flight was lost."""


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A group with the results and errors by flight; ``lost`` is the one whose event is lost."""

    name: str
    payload: Mapping[str, Any]
    results: Mapping[str, Any]
    errors: Mapping[str, str]
    lost: str | None = None

    @property
    def fate(self) -> Fate:
        """What has to become of it."""
        if self.errors:
            return Fate.FAILURE
        return Fate.SUCCESS if self.lost is None else Fate.TIMEOUT

    def create(self) -> dict[str, Any]:
        """Return the event that creates it."""
        ttl = TTL if self.lost is None else LOST_TTL
        return create_event(self.name, list(self.results), ttl=ttl, payload=self.payload)

    def done(self, flight: str) -> dict[str, Any]:
        """Return the event of a flight."""
        error = self.errors.get(flight)
        return done_event(self.name, flight, result=self.results[flight], error=error)

    def fault(self, outcome: Mapping[str, Any]) -> str | None:
        """Return what is wrong with an outcome, None if it is right."""
        results = outcome.get("results") or {}
        others = [name for name in results if self.results.get(name, ...) != results[name]]
        kind = SUCCESS if self.fate is Fate.SUCCESS else FAILURE
        if outcome.get("type") != kind:
            return f"group {self.name} has {self.fate.value}, and there is {outcome.get('type')}"
        if others or outcome.get("payload") != self.payload:
            return f"group {self.name} has other results or another payload: {json.dumps(outcome)}"
        match self.fate:
            case Fate.SUCCESS:
                is_right = results == self.results
            case Fate.FAILURE:
                entity = outcome.get("entity", "")
                is_right = self.errors.get(entity) == outcome.get("error")
            case Fate.TIMEOUT:
                said = outcome.get("entity"), outcome.get("error")
                is_right = said == (self.name, timed_out(LOST_TTL)) and self.lost not in results
        return None if is_right else f"group {self.name} has a wrong outcome: {json.dumps(outcome)}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The groups, and their events in the order in which they are produced.

    An event is the number of its group and a flight, None for the group's own. ``orphaned`` groups
    are created after the first of their flights, ``twice`` events are repetitions.
    """

    groups: list[FlightGroup]
    events: list[tuple[int, str | None]]
    orphaned: int
    twice: int

    def records(self) -> Iterator[tuple[None, bytes]]:
        """Yield the events, without keys as the original's producers write them."""
        for number, flight in self.events:
            group = self.groups[number]
            event = group.create() if flight is None else group.done(flight)
            yield None, json.dumps(event, separators=(",", ":")).encode()

    def describe(self) -> str:
        """Return in a sentence what is produced."""
        fates = [group.fate for group in self.groups]
        counts = ", ".join(f"{fates.count(fate)} {fate.value}" for fate in Fate)
        return (
            f"{len(self.groups)} groups ({counts}), {len(self.events)} events: {self.twice} twice, "
            f"{self.orphaned} groups created after a flight of theirs, "
            f"{fates.count(Fate.TIMEOUT)} events lost"
        )


def schedule(flights: pd.DataFrame) -> Schedule:
    """Return the groups that flights make, and their events in an order drawn from a fixed seed."""
    random = np.random.default_rng(_SEED)
    groups, rows = _groups(flights, random)
    window = max(_LEAST_WINDOW, round(_WINDOW * len(flights)))
    orphaned = set(_chosen(random, len(groups), ORPHANED))
    placed: list[tuple[float, int, str | None]] = []
    for number, group in enumerate(groups):
        arrivals = [
            (at + random.uniform(0, window), number, flight)
            for at, flight in zip(rows[number], group.results, strict=True)
            if flight != group.lost
        ]
        first = min(arrivals, default=(rows[number][0], number, None))[0]
        own = first + window / 2 if number in orphaned and arrivals else rows[number][0] - 1
        placed += [(own, number, None), *arrivals]
    again = _chosen(random, len(placed), TWICE)
    late = [(placed[n][0] + random.uniform(0, window), *placed[n][1:]) for n in again]
    ordered = sorted([*placed, *late], key=lambda event: event[0])
    events = [(number, flight) for _, number, flight in ordered]
    return Schedule(groups, events, _created_late(events), len(late))


def _groups(flights: pd.DataFrame, random: Generator) -> tuple[list[FlightGroup], list[list[int]]]:
    """Return the groups, and the rows of the flights of each."""
    named = flights.assign(
        entity=flights["carrier"] + flights["flight"].astype(str) + "/" + flights["row"].astype(str)
    )
    groups, rows = [], []
    for found, part in named.groupby(_KEY, sort=False):
        origin, month, day, hour = cast("tuple[str, int, int, int]", found)
        landed, left = part["arr_time"].notna(), part["dep_time"].notna()
        results: dict[str, Any] = {}
        errors = {}
        for name, delay, has_landed, has_left in zip(
            part["entity"], part["arr_delay"], landed, left, strict=True
        ):
            results[name] = {"arr_delay": int(delay)} if delay == delay else None  # noqa: PLR0124 - not NaN
            if not has_landed:
                errors[name] = NOT_LANDED if has_left else CANCELLED
        payload = {"origin": origin, "month": int(month), "day": int(day), "hour": int(hour)}
        name = f"{origin}-{month:02}-{day:02}-{hour:02}"
        groups.append(FlightGroup(name, payload, results, errors))
        rows.append(part["row"].tolist())
    sound = [number for number, group in enumerate(groups) if not group.errors]
    for index in _chosen(random, len(sound), LOST):
        group = groups[sound[index]]
        lost = str(random.choice(list(group.results)))
        groups[sound[index]] = FlightGroup(group.name, group.payload, group.results, {}, lost)
    return groups, rows


def _chosen(random: Generator, count: int, share: float) -> list[int]:
    """Return a share of so many numbers, at least one of them."""
    return sorted(random.choice(count, size=max(1, round(count * share)), replace=False).tolist())


def _created_late(events: Iterable[tuple[int, str | None]]) -> int:
    """Count the groups of which a flight comes before their own event."""
    created: set[int] = set()
    late: set[int] = set()
    for number, flight in events:
        if flight is None:
            created.add(number)
        elif number not in created:
            late.add(number)
    return len(late)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found.

    ``twice`` counts outcomes beyond a group's first, ``missing`` groups without one; ``faults``
    has a sentence for each outcome that is wrong, or of no group.
    """

    groups: int
    outcomes: int
    twice: int
    missing: int
    faults: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether each group has exactly one outcome, and the right one."""
        return not (self.twice or self.missing or self.faults)

    def __str__(self) -> str:
        counts = (
            f"{self.groups} groups, {self.outcomes} outcomes, {self.twice} twice, "
            f"{self.missing} missing"
        )
        if self.holds:
            return f"verified: {counts}"
        wrong = f", {len(self.faults)} wrong: {self.faults[0]}" if self.faults else ""
        return f"NOT verified: {counts}{wrong}"


def compare(
    outcomes: Sequence[Mapping[str, Any]], groups: Iterable[FlightGroup], flights: pd.DataFrame
) -> Verdict:
    """Compare the outcomes that were read with the groups that were produced, and their flights."""
    known = {group.name: group for group in groups}
    seen: dict[str, int] = {}
    faults = []
    for outcome in outcomes:
        name = str(outcome.get("id"))
        group = known.get(name)
        fault = f"there is no group {name}" if group is None else group.fault(outcome)
        if group is not None:
            seen[name] = seen.get(name, 0) + 1
        if fault is not None:
            faults.append(fault)
    lost = {group.name for group in known.values() if group.fate is Fate.TIMEOUT}
    if not _delays_found(outcomes).equals(_delays(flights, lost)):
        faults.append("the arrival delays by airport are not those of the flights")
    twice = sum(number - 1 for number in seen.values())
    return Verdict(len(known), len(outcomes), twice, len(known) - len(seen), tuple(faults))


def _delays(flights: pd.DataFrame, lost: set[str]) -> pd.DataFrame:
    """Return the delays of the groups that have to succeed, told by the flights alone."""
    failed = flights["arr_time"].isna().groupby([flights[name] for name in _KEY]).transform("any")
    names = flights["origin"]
    for part in _KEY[1:]:
        names = names + "-" + flights[part].astype(str).str.zfill(2)
    return _statistics(flights[~failed & ~names.isin(lost)][["origin", "arr_delay"]])


def _delays_found(outcomes: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the delays in the outcomes of groups that succeeded."""
    rows = [
        (outcome["payload"]["origin"], (result or {}).get("arr_delay"))
        for outcome in outcomes
        if outcome.get("type") == SUCCESS
        for result in outcome["results"].values()
    ]
    return _statistics(pd.DataFrame(rows, columns=["origin", "arr_delay"]))


def _statistics(rows: pd.DataFrame) -> pd.DataFrame:
    """Return flights, delays known, and their sum by airport; delays are whole minutes."""
    return (
        rows.astype({"arr_delay": float})
        .groupby("origin")["arr_delay"]
        .agg(["size", "count", "sum"])
    )
