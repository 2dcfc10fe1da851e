"""The topics of a topology's channels, by their sections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import ChannelConfig, Config
from headrace.config.derived import continued, written_topics
from headrace.config.models.processor import TopicByKey
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.names import BY_KEY_SETTINGS
from headrace.extensions.keyed.runtime.checkpoints import Checkpoints
from headrace.extensions.streams.section import StreamsProcessorConfig
from headrace.extensions.streams.topology import Topology
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = __name__

calls: list[int] = []


def top_pages() -> Topology:
    """Return a topology of three channels, and note the call."""
    calls.append(1)
    return programs.top_pages()


def mixed() -> Topology:
    """Return a topology whose channel reads its input again by another key."""
    app = Topology()
    orders: Any = app.stream("orders", programs.Order)
    orders.merge(orders.key_by(programs.Order.id, name="again")).to("both")
    return app


def channels(code: str, **section: Any) -> Mapping[str, ChannelConfig]:
    """Return the channels that a topology of this module becomes."""
    topology = {"code": f"{_HERE}:{code}", "group": "shop", **section}
    return Config.model_validate({"instance_id": "one", "topologies": {"t": topology}}).channels


def processor(channel: ChannelConfig) -> StreamsProcessorConfig:
    """Return the section of a channel's processor."""
    assert isinstance(channel.processor, StreamsProcessorConfig)
    return channel.processor


def test_a_channel_names_the_topics_that_it_writes() -> None:
    """Those by key have the settings of the section, and the rest are outputs."""
    internal = {"create": False, "partitions": 6, "replication_factor": 3}
    made = channels("top_pages", channel={"processor": {"internal": internal}})
    middle, last = made["t.pages"], made["t.top"]
    by_key = TopicByKey("shop.top.by-key", ("shop.pages.by-key",), False, 3, 6, BY_KEY_SETTINGS)
    assert processor(middle).topics_by_key(middle) == (by_key,)
    assert (processor(middle).outputs(middle), processor(last).outputs(last)) == (
        (),
        ("top-pages",),
    )
    assert not processor(last).topics_by_key(last)
    assert written_topics(middle) == {"shop.top.by-key", "shop.pages.by-key.state"}
    assert written_topics(last) == {"top-pages", "shop.top.by-key.state"}
    assert continued("t.top", made) == {"t.pages": ["shop.top.by-key"]}


def test_the_code_is_called_once_for_all_channels() -> None:
    """Topics are those of the plan that the channels were made of."""
    calls.clear()
    made = channels("top_pages")
    assert [written_topics(each) for each in made.values()]
    assert len(calls) == 1


def test_a_channel_that_is_written_out_has_the_topics_of_its_part() -> None:
    """Without the section of its topology the code is called when it is asked for them."""
    (one, *_) = channels("top_pages").values()
    section = processor(one).model_dump(mode="python", exclude_defaults=True)
    alone = StreamsProcessorConfig.model_validate(section)
    assert alone == processor(one)
    assert alone.topics_by_key(one) == processor(one).topics_by_key(one)


@pytest.mark.parametrize(
    ("code", "internal", "purged"),
    [
        ("top_pages", {}, {"t.pages": ("shop.pages.by-key",), "t.top": ("shop.top.by-key",)}),
        ("top_pages", {"purge_input": None}, {}),
        ("mixed", {}, {"t.orders": ("shop.again.by-key",)}),
        ("mixed", {"purge_input": "5s"}, {"t.orders": ("shop.again.by-key",)}),
    ],
)
def test_only_topics_by_key_are_purged(
    code: str, internal: dict[str, Any], purged: dict[str, tuple[str, ...]]
) -> None:
    """Others may read the inputs of a topology, whichever channel reads them, and what is asked."""
    made = channels(code, channel={"processor": {"internal": internal}})
    found = {name: processor(each).purged_topics(each) for name, each in made.items()}
    assert {name: topics for name, topics in found.items() if topics} == purged


def test_records_of_other_topics_are_not_deleted() -> None:
    """Those that are named are purged up to the offsets of both stores, and no others."""
    deleted: dict[TopicPartition, int] = {}
    partitions = [TopicPartition(topic, 0) for topic in ("orders", "shop.again.by-key")]
    assignments = [
        SimpleNamespace(partition=each, identity=each.topic, committed=7, is_current=lambda: True)
        for each in partitions
    ]
    stored = SimpleNamespace(offsets={each.topic: 5 for each in partitions})
    parts: Any = SimpleNamespace(
        state=SimpleNamespace(progress=lambda _: stored), store=None, sink=None
    )
    held: Any = SimpleNamespace(restored_assignments=lambda: assignments)
    catalog: Any = SimpleNamespace(delete_before=lambda offsets, _: deleted.update(offsets))
    nothing: Any = None
    checkpoints = Checkpoints(parts, held, nothing, nothing, catalog, nothing)
    checkpoints.purge(("shop.again.by-key",), Deadline.after(1))
    assert deleted == {partitions[1]: 5}
