from __future__ import annotations

import importlib.util
import json

import pytest

from examples.harness.flights import DemoError, key_values, read_flights
from tests.unit.examples.demo.table import ROWS, flights


def test_each_flight_is_json_keyed_by_its_tail_number() -> None:
    """The key is the tail number; numbers stay numbers, and null stays null."""
    records = list(key_values(flights()))
    assert len(records) == ROWS
    key, value = records[31]
    assert key == b"N31"
    assert json.loads(value) == {
        "row": 31,
        "carrier": "B6",
        "origin": "JFK",
        "dest": "LAX",
        "year": 2013,
        "month": 1,
        "day": 4,
        "hour": 8,
        "dep_delay": 11.0,
        "arr_delay": 1.0,
        "tailnum": "N31",
    }


def test_a_null_tail_number_is_a_null_key() -> None:
    """Flights without a tail number have no key, and null in their JSON."""
    key, value = next(key_values(flights()))
    assert key is None
    assert json.loads(value)["tailnum"] is None
    assert json.loads(value)["dep_delay"] is None


def test_a_missing_source_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the error is a sentence with the command to run."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DemoError, match=r"is not installed; make demo installs it"):
        read_flights()
