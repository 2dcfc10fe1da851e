"""The check of topologies over random cuts, failures and restarts."""

from __future__ import annotations

from itertools import count as numbers

import pytest

from headrace.streams import Field, Row, Topology, count, key, tumbling, window_start
from headrace.testing.streams import check_topology
from tests.unit.extensions.streams import programs


class Click(Row):
    """A click."""

    url: Field[str]


class Pages(Row):
    """The clicks of a page in a minute."""

    url: Field[str]
    begin: Field[int]
    n: Field[int]


def pages() -> Topology:
    """Count clicks by url and minute, in two parts."""
    app = Topology()
    by_url = app.stream("clicks", Click).group_by(Click.url, name="pages")
    counted = by_url.window(tumbling("1m")).agg(Pages, url=key, begin=window_start, n=count())
    counted.final().to("final")
    counted.each().to("each")
    counted.updates().to("updates")
    return app


CLICKS = [("clicks", None, {"url": f"/{at % 3}"}, 7_000 * at) for at in range(60)]


def test_a_topology_of_expressions_passes() -> None:
    """Windows and joins, cut at changes of key, over many cuts."""
    check_topology(pages, CLICKS)
    orders = [
        ("orders", str(at), {"id": str(at % 7), "amount": 1.5}, 50_000 * at) for at in range(30)
    ]
    paid = [
        ("payments", str(at), {"order": str(at % 7), "paid": 2.0}, 50_000 * at + 9)
        for at in range(30)
    ]
    check_topology(programs.settle, [*orders, *paid], runs=5)


def test_a_function_that_remembers_is_found() -> None:
    """The message names the topic, the place, and the seed."""

    def remembering() -> Topology:
        seen = numbers()
        app = Topology()
        clicks = app.stream("clicks", Click)
        clicks.map(lambda row: Click(url=f"{row.url}-{next(seen)}"), Click).to("out")
        return app

    with pytest.raises(AssertionError, match=r"topic out, place \d+: .* of seed 1: a function"):
        check_topology(remembering, CLICKS)
