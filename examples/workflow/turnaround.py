"""The demo's workflow: the turnaround of an aircraft, whose effects are written to a ledger."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.definitions import Workflows
from headrace.apps.workflow.errors import CallFailedError
from headrace.apps.workflow.messages import EVENT_RESULT, EXCEPTIONS, Assignment
from headrace.apps.workflow.terms import Call, Input, Parallel, Result, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

#: The variable that names the ledger's file to the workers.
LEDGER = "HEADRACE_TURNAROUND_LEDGER"

#: Seconds that a call waits for others to write to the ledger.
_LEDGER_TIMEOUT = 60.0

#: Seconds that a call may take, with what it waits for a worker that was killed.
_CALL_TIMEOUT = 900.0

flows = Workflows()

_own = threading.local()


class Ledger:
    """What calls have done, in a SQLite file that all workers write to. For one thread."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=_LEDGER_TIMEOUT, isolation_level=None)
        # a killed process loses nothing that the operating system has
        self._connection.execute("PRAGMA synchronous=OFF")

    @classmethod
    def create(cls, path: Path) -> Ledger:
        """Make a new file."""
        ledger = cls(path)
        ledger._connection.executescript(
            "PRAGMA journal_mode=WAL;"
            "CREATE TABLE calls (key TEXT);"
            "CREATE TABLE applied (call TEXT PRIMARY KEY) WITHOUT ROWID;"
            "CREATE TABLE effects (instance TEXT, process TEXT, times INTEGER, amount INTEGER,"
            " PRIMARY KEY (instance, process)) WITHOUT ROWID;"
        )
        return ledger

    def apply(self, call: Assignment, amount: int) -> None:
        """Have a call's effect, unless it was had: both in one transaction. Blocks."""
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO calls VALUES (?)", (call.key,))
            new = connection.execute("INSERT OR IGNORE INTO applied VALUES (?)", (call.call,))
            if new.rowcount:
                connection.execute(
                    "INSERT INTO effects VALUES (?, ?, 1, ?) ON CONFLICT (instance, process) DO "
                    "UPDATE SET times = times + 1, amount = amount + excluded.amount",
                    (call.instance, call.process, amount),
                )

    def calls(self) -> Counter[str]:
        """Return how often each attempt of a call was made."""
        return Counter(key for (key,) in self._connection.execute("SELECT key FROM calls"))

    def effects(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return of each instance's processes how often they had their effect, and how much."""
        found = self._connection.execute("SELECT instance, process, times, amount FROM effects")
        return {(instance, process): (times, n) for instance, process, times, n in found}

    def close(self) -> None:
        """Release the file."""
        self._connection.close()


def _apply(call: Assignment, amount: int) -> None:
    if not hasattr(_own, "ledger"):
        _own.ledger = Ledger(Path(os.environ[LEDGER]))
    _own.ledger.apply(call, amount)


@flows.process
def inspect(call: Assignment, miles: int) -> dict[str, int]:
    """Say what the aircraft needs."""
    _apply(call, miles)
    return {"liters": liters(miles)}


@flows.process
def refuel(call: Assignment, amount: int) -> int:
    """Fill the tanks."""
    _apply(call, amount)
    return amount


@flows.process
def clean(call: Assignment) -> None:
    """Clean the cabin."""
    _apply(call, 1)


@flows.process
def board(call: Assignment, fuel: int, flown: bool) -> int:
    """Have the passengers board, unless the flight is cancelled."""
    _apply(call, int(flown))
    if not flown:
        raise CallFailedError("the flight is cancelled")
    return fuel


flows.define(
    "turnaround",
    1,
    Sequence(
        inspect=Call("inspect", miles=Input("miles")),
        ready=Parallel(
            fuel=Call("refuel", amount=Result("inspect.liters")),
            cabin=Call("clean"),
        ),
        board=Call("board", fuel=Result("ready.fuel"), flown=Input("flown")),
    ),
    timeout=_CALL_TIMEOUT,
)


def liters(miles: int) -> int:
    """Return the fuel for so many miles."""
    return 500 + 9 * miles


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight as an instance."""

    instance: str
    miles: int
    flown: bool

    @property
    def args(self) -> dict[str, Any]:
        """What its instance is started with."""
        return {"miles": self.miles, "flown": self.flown}

    @property
    def amounts(self) -> dict[str, int]:
        """What its processes have as effects."""
        fuel = liters(self.miles)
        return {"inspect": self.miles, "refuel": fuel, "clean": 1, "board": int(self.flown)}

    def is_outcome(self, outcome: dict[str, Any]) -> bool:
        """Whether an outcome is the one that the flight has to have."""
        if self.flown:
            return bool(outcome["type"] == EVENT_RESULT and outcome["result"] == liters(self.miles))
        return bool(outcome["type"] == EXCEPTIONS and outcome["ref"] == "0.board")


def flights_of(frame: pd.DataFrame) -> list[Flight]:
    """Return rows of the source as instances, in their order."""
    rows = zip(frame["row"], frame["distance"], frame["dep_time"].notna(), strict=True)
    return [Flight(f"flight-{row}", int(miles), bool(flown)) for row, miles, flown in rows]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison of outcomes and effects with the flights found.

    ``twice`` counts the outcomes beyond the first of an instance, ``wrong`` those of another kind
    or result than the flight's, ``calls`` how often a process was called. Of the effects,
    ``applied_twice`` counts those beyond the first of a call, ``not_applied`` those that are
    missing or of another amount.
    """

    instances: int
    outcomes: int
    twice: int
    missing: int
    wrong: int
    calls: int
    applied_twice: int
    not_applied: int

    @property
    def holds(self) -> bool:
        """Whether all is as it has to be."""
        faults = self.twice, self.missing, self.wrong, self.applied_twice, self.not_applied
        return not any(faults) and self.outcomes == self.instances

    def __str__(self) -> str:
        counts = (
            f"{self.instances} instances, {self.outcomes} outcomes, {self.twice} twice, "
            f"{self.missing} missing, {self.calls} calls, {self.applied_twice} applied twice"
        )
        if self.holds:
            return f"verified: {counts}"
        return f"NOT verified: {counts}, {self.wrong} wrong, {self.not_applied} not applied"


def compare(
    flights: Iterable[Flight], outcomes: Iterable[dict[str, Any]], ledger: Ledger
) -> Verdict:
    """Compare outcomes and effects with the flights."""
    expected = {flight.instance: flight for flight in flights}
    found: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        found.setdefault(outcome["instance"], []).append(outcome)
    effects = ledger.effects()
    wanted = {
        (flight.instance, process): (1, amount)
        for flight in expected.values()
        for process, amount in flight.amounts.items()
    }
    return Verdict(
        instances=len(expected),
        outcomes=sum(map(len, found.values())),
        twice=sum(len(each) - 1 for each in found.values()),
        missing=len(expected.keys() - found.keys()),
        wrong=sum(
            name not in expected or not expected[name].is_outcome(outcome)
            for name, each in found.items()
            for outcome in each
        ),
        calls=ledger.calls().total(),
        applied_twice=sum(times - 1 for times, _ in effects.values()),
        not_applied=sum(effects.get(each) != effect for each, effect in wanted.items()),
    )
