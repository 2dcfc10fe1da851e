"""Which topics a configuration needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ops.topics.commands import Sizes, Use, chosen_topics, needed_topics, size_of
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


_CODE = "tests.unit.extensions.streams.programs"

TOPOLOGY = f"""
topologies:
  top:
    code: {_CODE}:top_pages
    group: shop
    channel: {{processor: {{internal: {{partitions: 4}}}}}}
  words: {{code: "{_CODE}:word_count", group: texts}}
channels:
  after:
    topics: top-pages
    group: after
    processor: {{type: simple}}
    sink: "a:b"
"""


def test_a_topology_s_topics_are_needed(tmp_path: Path) -> None:
    """Inputs, the topics of changes of key, changelogs, and what is written, in this order."""
    needed = needed_topics(loaded(tmp_path, TOPOLOGY).channels)
    assert {each.name: (each.use, each.as_) for each in needed} == {
        "clicks": (Use.INPUT, None),
        "lines": (Use.INPUT, None),
        "top-pages": (Use.INPUT, None),
        "shop.pages.by-key": (Use.BY_KEY, "clicks"),
        "shop.top.by-key": (Use.BY_KEY, "shop.pages.by-key"),
        "texts.words.by-key": (Use.BY_KEY, "lines"),
        "shop.clicks.clicks.state": (Use.CHANGELOG, "clicks"),
        "shop.pages.by-key.state": (Use.CHANGELOG, "shop.pages.by-key"),
        "shop.top.by-key.state": (Use.CHANGELOG, "shop.top.by-key"),
        "texts.lines.lines.state": (Use.CHANGELOG, "lines"),
        "texts.words.by-key.state": (Use.CHANGELOG, "texts.words.by-key"),
        "word-counts": (Use.OUTPUT, None),
    }
    uses = {each.name: each.uses for each in needed}
    assert uses["top-pages"] == ["input of after", "output of top.top"]
    sizes = {each.name: size_of(each, Sizes(None, None)) for each in needed}
    assert sizes["shop.pages.by-key"] == "4"
    assert sizes["texts.words.by-key"] == "as lines"
    # a topic is made after the one whose partitions it has
    names = [each.name for each in needed]
    assert all(names.index(each.as_) < names.index(each.name) for each in needed if each.as_)


def test_one_channel_s_topics_come_with_those_that_make_them(tmp_path: Path) -> None:
    """The channels that write its records by key are included, back to the first input."""
    needed = chosen_topics(loaded(tmp_path, TOPOLOGY), "top.top")
    assert [each.name for each in needed if each.use is not Use.CHANGELOG] == [
        "clicks",
        "shop.pages.by-key",
        "shop.top.by-key",
        "top-pages",
    ]
    status = chosen_topics(loaded(tmp_path, FILE), "orders")
    assert [each.name for each in status][:2] == ["orders", "status.orders.by-key"]


def test_records_by_key_of_a_pattern_have_partitions_of_their_own(tmp_path: Path) -> None:
    """No topic is named whose partitions they could have."""
    file = """
channels:
  all:
    topics: ["^orders"]
    group: all
    processor: {type: rekey, key: value.id, engine: arrow, internal: {partitions: 5}}
    sink: {type: kafka, topic: all-by-id}
"""
    (made,) = needed_topics(loaded(tmp_path, file).channels)
    assert (made.name, made.use, made.as_) == ("all-by-id", Use.BY_KEY, None)
    assert size_of(made, Sizes(None, None)) == "5"
