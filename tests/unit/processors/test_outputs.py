from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.channel.offset_stores import sink_is_fenced
from headrace.config import ChannelConfig, KafkaConfig
from headrace.core.errors import ImportPathError
from headrace.ops.offsets.sink_offsets import StartPrecedence, start_precedence
from headrace.sinks import Guarantee
from headrace.sinks.console import NoopSink
from headrace.sinks.factory import open_sink
from headrace.sinks.several import SeveralSink

if TYPE_CHECKING:
    from pathlib import Path


class Kept(NoopSink):
    """A sink that says that it keeps offsets, and cannot move them."""

    guarantee = Guarantee.EXACTLY_ONCE


def channel(outputs: dict[str, Any]) -> ChannelConfig:
    """Return a channel with several outputs."""
    values = {
        "topics": ["events"],
        "group": "group",
        "processor": {"type": "arrow", "reducer": "a:b"},
        "sink": {"type": "several", "outputs": outputs},
    }
    return ChannelConfig.model_validate(values)


def opened(outputs: dict[str, Any]) -> SeveralSink:
    """Build the sink as the controller does."""
    sink: Any = open_sink(channel(outputs), "member", KafkaConfig())
    assert isinstance(sink, SeveralSink)
    return sink


def test_outputs_that_one_transaction_can_have_are_committed_together(tmp_path: Path) -> None:
    """Tables of one database, and topics; every other output is alone, in the file's order."""
    url, other = (f"sqlite:///{tmp_path / name}.db" for name in ("one", "two"))
    sink = opened(
        {
            "delta": {"type": "delta", "path": str(tmp_path / "t")},
            "first": {"type": "sql", "url": url, "table": "a"},
            "topic": {"type": "kafka", "topic": "x"},
            "elsewhere": {"type": "sql", "url": other, "table": "a"},
            "second": {"type": "sql", "url": url, "table": "b"},
            "more": {"type": "kafka", "topic": "y"},
            "look": "console",
        }
    )
    assert [tuple(group.outputs) for group in sink.groups] == [
        ("look",),
        ("delta",),
        ("first", "second"),
        ("topic", "more"),
        ("elsewhere",),
    ]
    sink.close()


def test_an_output_that_cannot_be_built_is_named() -> None:
    """A missing factory stops the start."""
    with pytest.raises(ImportPathError, match="nowhere"):
        opened({"a": "noop", "b": {"type": "custom", "factory": "nowhere_at_all:make"}})


def test_operators_see_the_outputs_that_keep_offsets(tmp_path: Path) -> None:
    """Without one there is nothing to see; one that cannot move them is named."""
    delta = {"type": "delta", "path": str(tmp_path / "t")}
    kept = {"type": "custom", "factory": f"{__name__}:Kept"}
    assert start_precedence(channel({"a": "noop"}), [], KafkaConfig()) == StartPrecedence()
    found = start_precedence(channel({"a": delta, "b": kept}), [], KafkaConfig())
    assert found == StartPrecedence(out_of_reach="output b")
    found = start_precedence(channel({"a": delta, "b": "console"}), [], KafkaConfig())
    assert found.sink_offsets is not None
    assert found.sink_offsets.stored_offset("c/g/t/0") is None


def test_a_kafka_output_is_fenced() -> None:
    """The next owner shuts it out, as it does a Kafka sink."""
    with_kafka = channel({"a": "noop", "b": {"type": "kafka", "topic": "out"}})
    assert sink_is_fenced(with_kafka)
    assert not sink_is_fenced(channel({"a": "noop"}))
