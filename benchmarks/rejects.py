"""Undecodable records as dead letters against the same records skipped, without and with Spark.

Some of the records are malformed in different ways. The time is that of the whole topic, from the
first batch to the last commit.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, alternate
from benchmarks.sides import Side
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.extensions.arrow.section import ArrowProcessorConfig
from headrace.extensions.spark.engine import SparkEngine
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import spark_settings
from headrace.kafka.topic_producer import TopicProducer
from headrace.processors.micro_batch_processor import MicroBatchProcessor, decode, merge_limits
from headrace.sinks.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from benchmarks.rounds import Measured, Rounds
    from benchmarks.sides import Request, Result
    from headrace.config import ChannelConfig, Config
    from headrace.core.records import Batch
    from headrace.devstack import LocalStack
    from headrace.processors.engine import Engine
    from headrace.spark import MicroBatch

TARGET = 1.1

_TOPIC, _LETTERS = "rejects", "rejects.dead"

_POLICIES = ("skip", "dead_letter")

#: Seconds that a round may take, and that Spark's start and the filling of the topic may.
_PATIENCE = 250.0
_START = 240.0

#: Rounds that are not counted: Spark's become faster for as long, by half.
_UNCOUNTED_ROUNDS = 4

#: Ways in which a value is none of the schema's.
_MALFORMED = (b"", b'{"id": 1, "carrier": "LH', b'{"id": "one", "carrier": "LH", "delay": 1.5}')


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read. ``malformed`` of a thousand records; a round of less than ``shortest`` seconds
    is refused.
    """

    rounds: int = 5
    records: int = 1_600_000
    malformed: int = 30
    micro_batch: int = 50_000
    partitions: int = 4
    master: str = "local[*]"
    warm_up: int = 20
    shortest: float = SHORTEST


def table_rows(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return what was decoded."""
    del batch
    return table.select(["carrier", "delay"])


def frame_rows(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Return what was decoded."""
    del batch
    return df.select("carrier", "delay")


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round, on one broker. Blocks for some minutes."""
    plan = plan or Plan()
    with stack.servers() as servers:
        stack.create(servers, _TOPIC, plan.partitions)
        stack.create(servers, _LETTERS, plan.partitions)
        bad = _fill(servers, plan)
        compared: dict[str, Rounds] = {}
        for engine in ("arrow", "spark"):
            settings = {
                "configs": {each: _config(servers, plan, engine, each) for each in _POLICIES}
            }
            with Side(engine, RejectingChannel, settings) as side:
                compared[engine] = _compare(plan, servers, side, bad)
    return _report(plan, compared, bad)


def _values(plan: Plan) -> Iterator[tuple[None, bytes]]:
    for number in range(plan.records):
        # 37 and 1000 have no divisor in common, so that the malformed ones lie spread
        if number * 37 % 1000 < plan.malformed:
            yield None, _MALFORMED[number % len(_MALFORMED)]
        else:
            value = {"id": number, "carrier": f"C{number % 20}", "delay": number % 97 / 4}
            yield None, json.dumps(value).encode()


def _fill(servers: LocalStack, plan: Plan) -> int:
    """Produce the records; return how many are malformed."""
    client = {"bootstrap.servers": servers.bootstrap_servers, "partitioner": "random"}
    producer, deadline = TopicProducer(client, _TOPIC), Deadline.after(_START)
    producer.send(_values(plan), deadline)
    producer.flush(deadline)
    return sum(value in _MALFORMED for _, value in _values(plan))


def _config(servers: LocalStack, plan: Plan, engine: str, policy: str) -> str:
    reducer = "table_rows" if engine == "arrow" else "frame_rows"
    session = {"master": plan.master, "warm_up": plan.warm_up}
    sections = {"spark": session} if engine == "spark" else {}
    path = stack.configuration(
        servers.directory / "bench" / f"{engine}-{policy}",
        stack.addresses(servers),
        {
            "topics": [_TOPIC],
            "group": "bench",
            "batch": {"max_records": plan.micro_batch // plan.partitions, "linger": "1s"},
            "buffer": {"max_bytes": "512MiB"},
            # a round ends with a commit: one each second would hide a difference of a tenth
            "commit_interval": "50ms",
            "processor": {
                "type": engine,
                "reducer": f"{__name__}:{reducer}",
                "decode": "json",
                "schema": "id BIGINT, carrier STRING, delay DOUBLE",
                "max_records": plan.micro_batch,
            },
            "sink": "noop",
            "rejects": {"undecodable": policy, **(_LIMITS if policy == "dead_letter" else {})},
        },
        **sections,
    )
    return str(path)


#: None that these records would reach.
_LIMITS: dict[str, Any] = {
    "topic": _LETTERS,
    "max_consecutive": 1000,
    "max_per_thousand": 1000,
}


def _compare(plan: Plan, servers: LocalStack, side: Side, bad: int) -> Rounds:
    ends, groups = stack.ends(servers, _TOPIC, plan.partitions), count()

    def one(policy: str) -> Callable[[], Measured]:
        def measure() -> Measured:
            group = f"{side.name}-{policy}-{next(groups)}"
            return side.round({"config": policy, "group": group, "ends": ends, "bad": bad})

        return measure

    sides = {policy: one(policy) for policy in _POLICIES}
    warm = f"warm-up of {side.name}, not counted: "
    alternate(sides, _UNCOUNTED_ROUNDS, say=lambda line: say(warm + line), shortest=0.0)
    return alternate(
        sides, plan.rounds, say=lambda line: say(f"{side.name}: {line}"), shortest=plan.shortest
    )


def _report(plan: Plan, compared: dict[str, Rounds], bad: int) -> Report:
    by_engine = {
        engine: rounds.ratios("dead_letter", "skip", "seconds")
        for engine, rounds in compared.items()
    }
    ratios = {
        engine: rounds.ratio("dead_letter", "skip", "seconds")
        for engine, rounds in compared.items()
    }
    worse = max(ratios, key=lambda engine: ratios[engine])
    return Report(
        "rejects",
        {
            "dead_letter_over_skip": round(ratios[worse], 3),
            "target": TARGET,
            "worse": worse,
            **{f"{engine}_ratio": round(ratio, 3) for engine, ratio in ratios.items()},
            **{
                f"{engine}_ratios": [round(each, 3) for each in found]
                for engine, found in by_engine.items()
            },
            **{
                f"{engine}_{policy}_seconds": rounds.values(policy, "seconds")
                for engine, rounds in compared.items()
                for policy in _POLICIES
            },
            "rounds": plan.rounds,
            "records": plan.records,
            "malformed": bad,
            "micro_batch": plan.micro_batch,
            "partitions": plan.partitions,
        },
        {f"{engine}_ratio": found for engine, found in by_engine.items()},
    )


class _TimedProcessor(MicroBatchProcessor):
    """Notes when the first batch came and when the last one of each partition was committed."""

    def watch(self, ends: dict[int, int]) -> None:
        """Begin a round."""
        self.begun = self.ended = 0.0
        self.finished = Event()
        # no batch ever comes of a partition that is empty
        self._left = {number: end for number, end in ends.items() if end}

    def on_next_batch(self, batch: Batch) -> Any:
        """Start the clock with the first one."""
        self.begun = self.begun or time.perf_counter()
        return super().on_next_batch(batch)

    def on_batch_processed(self, batch: Batch) -> None:
        """Stop the clock with the last commit."""
        number = batch.partition.partition
        if batch.next_offset >= self._left.get(number, batch.next_offset + 1):
            del self._left[number]
        if not self._left:
            self.ended = time.perf_counter()
            self.finished.set()


class RejectingChannel:
    """Reads the whole topic through a controller; the Spark session stays from round to round."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._configs: dict[str, Config] = {
            policy: load(Path(path)) for policy, path in settings["configs"].items()
        }
        self._runtime: SparkRuntime | None = None

    def _engine(self, channel: ChannelConfig) -> Engine:
        chosen: Any = channel.processor
        decoding = decode(chosen, channel.rejects)
        if isinstance(chosen, ArrowProcessorConfig):
            return ArrowEngine(chosen.reducer, decoding)
        return SparkEngine(self._spark(), chosen.reducer, decoding)

    def _spark(self) -> SparkRuntime:
        if self._runtime is None:
            some = next(iter(self._configs.values()))
            self._runtime = SparkRuntime(replace(spark_settings(some.spark), start_timeout=_START))
            self._runtime.start()
        return self._runtime

    def round(self, request: Request) -> Result:
        """Read the topic as ``group`` up to ``ends``; ``bad`` records are to be answered for."""
        config = self._configs[request["config"]]
        channel = config.channels["bench"].model_copy(update={"group": request["group"]})
        config = config.model_copy(update={"channels": {"bench": channel}})
        sink = open_sink(channel, config.instance_id, config.kafka)
        limits = merge_limits(channel)
        processor = _TimedProcessor(self._engine(channel), sink, limits=limits)
        processor.watch(request["ends"])
        controller = KafkaController(config, processors={"bench": processor})
        controller.start(Deadline.after(60))
        try:
            finished = processor.finished.wait(_PATIENCE)
            failure = controller.wait(0.001)
        finally:
            left = controller.stop(Deadline.after(30)).left
        if not finished or failure is not None or left:
            raise AssertionError(f"unfinished: failure {failure}, left {left}")
        answered = _answered(controller)
        if answered != request["bad"]:
            raise AssertionError(f"{answered} of {request['bad']} malformed records answered for")
        seconds = processor.ended - processor.begun
        records = sum(request["ends"].values())
        return {
            "records": records,
            "seconds": round(seconds, 3),
            "rate": round(records / seconds),
            "rejected": answered,
        }

    def close(self) -> None:
        """End Spark."""
        if self._runtime is not None:
            self._runtime.stop(Deadline.after(30))


def _answered(controller: KafkaController) -> int:
    """Return how many records were skipped or put into the dead-letter topic."""
    labels = {"channel": "bench", "topic": _TOPIC}
    sample = controller.metrics.registry.get_sample_value
    skipped = sample("headrace_skipped_records_total", {**labels, "reason": "undecodable"})
    lettered = sample("headrace_dead_lettered_records_total", labels)
    return int((skipped or 0) + (lettered or 0))
