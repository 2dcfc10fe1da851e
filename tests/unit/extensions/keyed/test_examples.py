"""The worked examples with state by key: the rows that each shows are what its records give."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from headrace.config import Config, load
from headrace.core.imports import load_callable
from headrace.extensions.keyed.section import KeyedProcessorConfig, RekeyProcessorConfig
from headrace.testing.keyed import KeyedTest, Sent, check_reducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = Path(__file__).parents[4] / "examples"

#: A fact of a key that no record has, after which nothing of theirs is open.
END = Sent("the end", {"event": "none", "distance": 0, "delay": 0}, 4_000_000_000_000)


class Example:
    """Hold one folder: its configuration, its records as facts, and the expected rows."""

    def __init__(self, name: str) -> None:
        self.folder = EXAMPLES / name
        self.config: Config = load(self.folder / "headrace.yaml")
        self.chosen = self.config.channels[name].processor
        self.rekey = self.config.channels[f"{name}.rekey"].processor
        assert isinstance(self.chosen, KeyedProcessorConfig)
        assert isinstance(self.rekey, RekeyProcessorConfig)
        assert self.chosen.reducer is not None
        self.reducer: Callable[..., Any] = load_callable(self.chosen.reducer)
        self.time: Callable[..., int] = load_callable(self.chosen.time)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records' values."""
        lines = (self.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that the folder expects."""
        lines = (self.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def facts(self) -> list[Sent]:
        """The records that have a key, by it."""
        assert isinstance(self.rekey, RekeyProcessorConfig)
        steps = self.rekey.key.split(".")[1:]
        found = []
        for record in self.records:
            key: Any = record
            for step in steps:
                key = key.get(step) if isinstance(key, dict) else None
            if key is not None:
                found.append(Sent(key, record, self.time(json.dumps(record).encode())))
        return found


@pytest.fixture(params=["checkout", "sessions"])
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    """One of the examples, with its module on the path for the test."""
    monkeypatch.syspath_prepend(str(EXAMPLES / request.param))
    yield Example(request.param)
    sys.modules.pop(request.param, None)


def by_key(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    """Return rows by order or plane, each key's in their order."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.get("order", row.get("plane")), []).append(row)
    return found


def test_an_example_makes_the_rows_that_it_shows(example: Example) -> None:
    """The records and a time at which all timers are due give the rows of the folder."""
    test = KeyedTest(example.reducer)
    test.send(*example.facts)
    test.send(END)
    found = [out.value for out in test.outputs if out.key != END.key]
    assert by_key(found) == by_key(example.rows)


def test_an_example_gives_the_same_wherever_batches_are_cut(example: Example) -> None:
    """The reducer is pure, so that a crash changes nothing."""
    check_reducer(example.reducer, [*example.facts, END])


def test_an_unpaid_order_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are given up after 30 minutes; a paid one is overdue after two days, but can ship."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "checkout"))
    status = load_callable("checkout:status")
    sys.modules.pop("checkout", None)
    minute, day = 60_000, 86_400_000
    test = KeyedTest(status)
    placed = {"event": "placed", "cents": 5}
    test.send(("a", placed, 0), ("b", placed, 0))
    test.send(("b", {"event": "paid"}, 29 * minute), ("c", placed, 30 * minute))
    told = by_key([out.value for out in test.outputs])
    assert [row["status"] for row in told["a"]] == ["placed", "abandoned"]
    assert [row["status"] for row in told["b"]] == ["placed", "paid"]
    assert test.state("a") is None
    late = test.send(("b", {"event": "shipped"}, 3 * day))
    assert [out.value["status"] for out in late if out.key == "b"] == ["overdue", "shipped"]


def test_the_sessions_are_those_that_pandas_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flights of a plane less than eight hours apart, their miles and the minutes of delay."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "sessions"))
    example = Example("sessions")
    sys.modules.pop("sessions", None)
    flights = pd.DataFrame(example.records).dropna(subset=["plane"])
    flights["at"] = pd.to_datetime(flights["at"])
    flights = flights.sort_values(["plane", "at"], kind="stable")
    apart = flights.groupby("plane")["at"].diff() >= pd.Timedelta(8, "h")
    flights["session"] = apart.groupby(flights["plane"]).cumsum()
    flights["delay"] = flights["delay"].fillna(0).clip(lower=0).astype(int)
    expected = [
        {
            "plane": plane,
            "first": f"{own['at'].min():%Y-%m-%dT%H:%MZ}",
            "last": f"{own['at'].max():%Y-%m-%dT%H:%MZ}",
            "flights": len(own),
            "miles": int(own["distance"].sum()),
            "delay": int(own["delay"].sum()),
        }
        for (plane, _), own in flights.groupby(["plane", "session"])
    ]
    assert len(expected) > 20
    assert by_key(expected) == by_key(example.rows)
