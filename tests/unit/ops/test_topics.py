"""Which topics a configuration needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ops.topics.commands import Use, needed_topics
from tests.unit.config.support import loaded

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
channels:
  flights:
    topics: [flights, '^more[.]']
    group: statistics
    processor: {type: arrow, reducer: "a:b", decode: json, schema: a INT}
    sink: {type: kafka, topic: delays}
    rejects: {failing: dead_letter, topic: letters}
  late:
    topics: delays
    group: late
    processor: {type: simple, deliver: record}
    sink: "a:b"
    rejects: {failing: dead_letter, topic: letters}
  orders:
    topics: orders
    group: status
    processor:
      {type: keyed, reducer: "a:b", engine: arrow, key: value.customer}
    rejects: {failing: dead_letter, topic: poison}
    sink: {type: kafka, topic: out}
  counts:
    topics: delays
    group: counts
    processor: {type: keyed, reducer: "a:b", engine: arrow}
    sink: {type: kafka, topic: out}
"""


def test_each_topic_that_channels_name_is_needed_once(tmp_path: Path) -> None:
    """Inputs before what is made of them; a topic that several have says so; no pattern is one."""
    needed = needed_topics(loaded(tmp_path, FILE).channels)
    assert {each.name: (each.use, each.as_) for each in needed} == {
        "flights": (Use.INPUT, None),
        "delays": (Use.INPUT, None),
        "orders": (Use.INPUT, None),
        "status.orders.by-key": (Use.BY_KEY, "orders"),
        "status.orders.by-key.state": (Use.CHANGELOG, "status.orders.by-key"),
        "counts.delays.state": (Use.CHANGELOG, "delays"),
        "out": (Use.OUTPUT, None),
        "letters": (Use.LETTERS, None),
        "poison": (Use.LETTERS, None),
    }
    order = list(Use)
    assert [order.index(each.use) for each in needed] == sorted(
        order.index(each.use) for each in needed
    )
    (delays,) = (each for each in needed if each.name == "delays")
    assert delays.uses == ["input of late", "input of counts", "output of flights"]
    (poison,) = (each for each in needed if each.name == "poison")
    assert set(poison.uses) == {"dead letters of orders.rekey", "dead letters of orders"}
