"""The end of a restore: behind transactions that are not marked as committed yet."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

from confluent_kafka import Producer

from headrace.config import ChannelConfig, KafkaConfig, ProcessorSite
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.runtime.build import build_keyed
from headrace.extensions.keyed.runtime.channel_fold import keyed_settings
from tests.brokers import Broker

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 30.0


def no_spark() -> NoReturn:
    """Fail, because nobody needs it."""
    raise AssertionError("engine: arrow takes no Spark")


def test_a_restore_ends_behind_an_open_transaction(bootstrap_servers: str, tmp_path: Path) -> None:
    """A commit is answered before its topics have the mark: its rows must not be left out."""
    topic = Broker(bootstrap_servers).create_topic()
    chosen = {"type": "keyed", "engine": "arrow", "reducer": "benchmarks.chaos.keyed:count"}
    channel = ChannelConfig.model_validate({"topics": [topic], "group": "g", "processor": chosen})
    kafka = KafkaConfig(bootstrap_servers=bootstrap_servers)
    site = ProcessorSite(channel, "m", kafka, tmp_path, no_spark)
    processor = build_keyed(keyed_settings(channel), site)
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": f"tx.{topic}"}
    producer = Producer(settings)
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(WAIT) == 0
    with closing(processor.parts.catalog()) as catalog:
        end = catalog.watermarks(TopicPartition(topic, 0), Deadline.after(WAIT))[1]
    producer.abort_transaction(WAIT)
    assert end == 1
