from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.sinks.sections import KafkaSinkConfig
from tests.unit.config.support import CHANNELS, channel, refused

if TYPE_CHECKING:
    from pathlib import Path

SPARK = {"type": "spark", "reducer": "a:b"}


@pytest.mark.parametrize("fields", [{}, {"topic": None}, {"topic": "late"}])
def test_a_topic_may_be_left_to_the_rows(fields: dict[str, Any]) -> None:
    """Null says so too."""
    sink = channel(processor=SPARK, sink={"type": "kafka", **fields}).sink
    assert sink == KafkaSinkConfig(topic=fields.get("topic"))


def test_results_must_not_come_back(tmp_path: Path) -> None:
    """A topic that the channel reads would be read for ever."""
    text = CHANNELS.replace("noop", "{type: kafka, topic: flights}")
    assert "is flights, which the channel reads, so that each result" in "".join(
        refused(tmp_path, text)
    )


def test_results_may_come_back_where_that_is_said(tmp_path: Path) -> None:
    """A reducer that knows its own results again may write to the topic that it reads."""
    sink = channel(processor=SPARK, sink={"type": "kafka", "topic": "flights", "loop": True}).sink
    assert sink == KafkaSinkConfig(topic="flights", loop=True)
    said = "".join(refused(tmp_path, CHANNELS.replace("noop", "{type: kafka, topic: flights}")))
    assert "write loop: true if the reducer passes over its own" in said


def test_each_partition_gets_a_record_with_the_keyed_processor_only(tmp_path: Path) -> None:
    """Other processors say themselves which partition a row goes to."""
    text = CHANNELS.replace("noop", "{type: kafka, topic: out, to_all: true}")
    said = "".join(refused(tmp_path, text))
    assert "goes with the processor keyed, and this is spark; leave it out" in said


def test_a_member_has_one_transactional_producer(tmp_path: Path) -> None:
    """The sink's offsets win at a start, so that fencing the group's has no use."""
    text = CHANNELS.replace(
        "sink: noop", "sink: {type: kafka, topic: out}\n    offsets: {fencing: transactions}"
    )
    assert "one transactional producer, which is the Kafka sink's" in "".join(
        refused(tmp_path, text)
    )
