"""Run with: python -m pytest, once pytest is there: pip install pytest."""

from __future__ import annotations

from reducer import reduce

from headrace.testing import reduce_arrow


def test_each_carrier_has_its_flights_and_its_largest_delay() -> None:
    """Of no flights there is no row."""
    records = [b'{"carrier": "UA", "delay": 3}', b'{"carrier": "AA", "delay": -1}']
    rows = reduce_arrow(reduce, [*records, b'{"carrier": "UA", "delay": 40}'], schema=SCHEMA)
    assert rows == [
        {"carrier": "AA", "flights": 1, "largest_delay": -1},
        {"carrier": "UA", "flights": 2, "largest_delay": 40},
    ]


SCHEMA = "carrier STRING, delay INT"
