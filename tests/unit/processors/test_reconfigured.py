"""Configuration that a processor applies while it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import ChannelConfig
from headrace.core.errors import ConfigError, PoisonRecordError
from headrace.core.tables import OnUndecodable
from headrace.processors import BatchResponse
from headrace.processors.contract import ChannelContext
from headrace.processors.simple import SimpleKafkaProcessor
from headrace.telemetry.metrics import Metrics
from headrace.testing.channel import FakeClock
from headrace.testing.records import FakeRecord, make_batch
from tests.unit.processors.keyed_bench import KeyedBench
from tests.unit.processors.keyed_bench import configured as keyed
from tests.unit.processors.spark_bench import Bench

if TYPE_CHECKING:
    from pathlib import Path


def configured(processor: dict[str, Any], **settings: Any) -> ChannelConfig:
    """Return a channel's configuration with this processor."""
    sink = "noop" if processor["type"] == "spark" else "a:b"
    least = {"topics": ["events"], "group": "group", "sink": sink, "processor": processor}
    return ChannelConfig.model_validate({**least, **settings})


def test_a_simple_processor_reads_at_the_rate_configured_now() -> None:
    """A rate is begun, changed and taken away between two batches."""
    processor = SimpleKafkaProcessor(lambda _: None)
    processor.open(ChannelContext("channel", "group", Metrics(), FakeClock()))
    batch = make_batch([b"x"] * 10)
    assert processor.on_next_batch(batch) == BatchResponse.advance()
    processor.on_reconfigured(configured({"type": "simple", "max_read_rate": 5.0}))
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=2.0)
    processor.on_reconfigured(configured({"type": "simple", "max_read_rate": 10.0}))
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=1.0)
    processor.on_reconfigured(configured({"type": "simple"}))
    assert processor.on_next_batch(batch) == BatchResponse.advance()


def test_an_unchanged_rate_goes_on_counting() -> None:
    """Another change does not give a member the time again that it has used up."""
    processor = SimpleKafkaProcessor(lambda _: None)
    processor.open(ChannelContext("channel", "group", Metrics(), FakeClock()))
    limited = configured({"type": "simple", "max_read_rate": 5.0})
    processor.on_reconfigured(limited)
    batch = make_batch([b"x"] * 10)
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=2.0)
    processor.on_reconfigured(limited)
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=4.0)


def test_a_simple_processor_delays_for_as_long_as_configured_now() -> None:
    """A record that was ripe has to wait once there is a delay."""
    processor, clock = SimpleKafkaProcessor(lambda _: None), FakeClock(1000.0)
    processor.open(ChannelContext("channel", "group", Metrics(), clock))
    batch = make_batch([FakeRecord(offset_=1, timestamp_=int(clock.time() * 1000) - 1000)])
    assert processor.on_next_batch(batch) == BatchResponse.advance()
    processor.on_reconfigured(configured({"type": "simple", "delay": "6s"}))
    answer = processor.on_next_batch(batch)
    assert (answer.offset, round(answer.wait)) == (batch.start, 5)


def test_micro_batches_are_merged_timed_and_decoded_as_configured_now() -> None:
    """Limits, the time of a job and the undecodable follow the configuration."""
    bench = Bench()
    reader = {"subject": "x-value"}
    spark = {"type": "spark", "reducer": "a:b", "decode": "avro", "reader_schema": reader}
    config = configured(
        {**spark, "max_records": 10}, batch_timeout="15s", rejects={"undecodable": "skip"}
    )
    bench.processor.on_reconfigured(config)
    assert bench.engine.undecodable is OnUndecodable.SKIP
    bench.send(0)
    bench.send(1)
    bench.run_once()
    bench.run_once()
    assert [job.records for job in bench.engine.jobs] == [10, 10]
    bench.engine.seconds = 20.0
    bench.processor.on_reconfigured(configured(spark, batch_timeout="1m"))
    bench.send(2)
    bench.run_once()
    assert len(bench.engine.jobs) == 3


def test_admission_is_as_configured_now() -> None:
    """Shedding begins and ends with the next batch, and a rate that stays goes on counting."""
    bench = Bench()
    bench.assignments[0].high_watermark = 100
    shedding = {"overflow": "skip", "max_pending": 85, "overflow_choice": "oldest"}
    throttling = {"max_rate": 1.0}
    waits = []
    more = {**shedding, "max_pending": 65}
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({}, shedding),
        (throttling, {}),
        (throttling, more),
        ({}, {}),
    ]
    for start, (rate, rejects) in zip(range(0, 50, 10), steps, strict=True):
        processor = {"type": "spark", "reducer": "a:b", **rate}
        chosen = configured(processor, batch_timeout="15s", rejects=rejects)
        bench.processor.on_reconfigured(chosen)
        answer = bench.send(0, start)
        bench.run_once()
        waits.append(round(answer.result(0).wait))
    assert [job.records for job in bench.engine.jobs] == [10, 5, 10, 5, 10]
    assert waits == [0, 0, 10, 15, 0]


def test_facts_are_reduced_as_configured_now(tmp_path: Path) -> None:
    """Poison fails its batch until it is to be dropped, and again after that; the state stays."""
    with KeyedBench(tmp_path).daemon() as daemon:
        held = daemon.assign(0)
        daemon.send(held, b"k")
        with pytest.raises(PoisonRecordError):
            daemon.send(held, b"k", b"\xff")
        daemon.processor.on_reconfigured(keyed(rejects={"failing": "skip"}))
        daemon.send(held, b"k", b"\xff")
        daemon.send(held, b"k")
        assert daemon.counted(0, b"k") == 2
        daemon.processor.on_reconfigured(keyed())
        with pytest.raises(PoisonRecordError):
            daemon.send(held, b"k", b"\xff")


def test_a_change_that_a_reducer_refuses_is_not_applied(tmp_path: Path) -> None:
    """No other setting of the file takes effect either."""

    def refuse(_: object) -> None:
        raise ConfigError(["channels.main.processor.state.max_row: too little"])

    with KeyedBench(tmp_path).daemon() as daemon:
        daemon.processor.parts = replace(daemon.processor.parts, follow=refuse)
        before = daemon.processor.current.settings, daemon.processor._job_timeout
        with pytest.raises(ConfigError):
            daemon.processor.on_reconfigured(
                keyed(idle="9s", state={"max_row": "1KiB"}).model_copy(
                    update={"batch_timeout": 99.0}
                )
            )
        assert (daemon.processor.current.settings, daemon.processor._job_timeout) == before
