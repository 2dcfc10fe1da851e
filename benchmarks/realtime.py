"""From topic to topic by record: Spark in real-time mode and in micro-batches, and channels."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks import reducers, stack
from benchmarks.pipeline import Steady, spread
from benchmarks.report import Report, say
from benchmarks.rounds import alternate
from benchmarks.sides import Side
from benchmarks.spark_channel import SparkChannel
from benchmarks.steady import PRODUCED, produce
from benchmarks.structured_streaming import Input, frame, session
from headrace.config import load
from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.rounds import Measured, Rounds
    from benchmarks.sides import Request, Result
    from headrace.devstack import LocalStack

#: Seconds beyond the steady input until all of it has to have come out.
_PATIENCE = 40.0

#: How long a query in real-time mode goes on between two of its checkpoints: Spark's own default.
_CHECKPOINTS = "5 minutes"

#: The channels by the type of their processor, with the reducers that do what the queries do.
CHANNELS = {"spark": "marked", "arrow": "marked_table"}

#: What a channel's latencies are compared with.
_QUERIES = ("realtime", "streaming")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared. A query in real-time mode needs a slot for each partition."""

    steady: Steady = field(default_factory=Steady)
    rounds: int = 3
    partitions: int = 4
    warm_up: int = 50


class Query:
    """A query from a topic to a topic, in real-time mode or in micro-batches.

    The micro-batches keep their progress aside, as Spark allows with its sink for Kafka: nothing
    waits for the checkpoint.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._config = load(Path(settings["configs"]["query"]))
        self._real_time: bool = settings["real_time"]
        self._session = session(self._config)

    def round(self, request: Request) -> Result:
        """Forward the topic from its beginning, for ``seconds``."""
        servers = ",".join(self._config.kafka.bootstrap_servers)
        source = Input(
            self._config, request["topic"], None if self._real_time else request["batch"]
        )
        read = frame(self._session, source, tuned=not self._real_time)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            writer = read.select("key", reducers.marked_value()).writeStream.format("kafka")
            writer = writer.option("kafka.bootstrap.servers", servers)
            writer = writer.option("topic", request["output"])
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
            if self._real_time:
                writer = writer.outputMode("update")
                # pyspark's types do not have this one yet
                writer = writer.trigger(realTime=_CHECKPOINTS)  # type: ignore[call-overload]
            else:
                writer = writer.option("asyncProgressTrackingEnabled", "true")
            query = writer.start()
            try:
                query.awaitTermination(request["seconds"])
            finally:
                query.stop()
        return {}

    def close(self) -> None:
        """End Spark."""
        self._session.stop()


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round, on one broker. Blocks for some minutes."""
    plan = plan or Plan()
    with stack.servers() as servers:
        settings = {"configs": _configs(servers, plan)}
        with (
            Side("realtime", Query, settings | {"real_time": True}) as realtime,
            Side("streaming", Query, settings | {"real_time": False}) as streaming,
            Side("channel", SparkChannel, settings) as channel,
        ):
            actions = {
                "realtime": _action(plan, servers, realtime, "query"),
                "streaming": _action(plan, servers, streaming, "query"),
                **{name: _action(plan, servers, channel, name) for name in CHANNELS},
            }
            alternate(actions, 1, say=lambda line: say(f"warm-up: {line}"), shortest=0.0)
            rounds = alternate(actions, plan.rounds, say=say, shortest=0.0)
    return Report("realtime", _figures(plan, rounds), by_round(rounds))


def by_round(rounds: Rounds) -> dict[str, list[float]]:
    """Return what each ratio was round by round."""
    return {
        f"{channel}_over_{query}_{key}": rounds.ratios(channel, query, key)
        for key in ("p50", "p99")
        for channel in CHANNELS
        for query in _QUERIES
    }


def _configs(servers: LocalStack, plan: Plan) -> dict[str, str]:
    """Write a configuration for each channel, and one that the queries have their session of."""
    made = {name: _config(servers, plan, name, reducer) for name, reducer in CHANNELS.items()}
    return made | {"query": made["spark"]}


def _config(servers: LocalStack, plan: Plan, kind: str, reducer: str) -> str:
    path = stack.configuration(
        servers.directory / "bench" / kind,
        stack.addresses(servers),
        {
            "topics": ["in"],
            "group": "bench",
            "batch": {"linger": "0ms"},
            "processor": {"type": kind, "reducer": f"benchmarks.reducers:{reducer}"},
            "sink": {"type": "kafka", "topic": "out"},
        },
        spark={"master": f"local[{plan.partitions}]", "warm_up": plan.warm_up},
    )
    return str(path)


def _action(plan: Plan, servers: LocalStack, side: Side, config: str) -> Callable[[], Measured]:
    """Return a round: records are produced, forwarded and awaited at the same time."""
    steady, numbers = plan.steady, count()
    records = round(steady.rate * steady.seconds)

    def round_of() -> Measured:
        topic = f"{side.name}-{config}-{next(numbers)}"
        output = f"{topic}-out"
        for name in (topic, output):
            stack.create(servers, name, plan.partitions)
        deadline = Deadline.after(steady.seconds + 2 * _PATIENCE)
        with ThreadPoolExecutor(2) as pool:
            sent = pool.submit(produce, servers.bootstrap_servers, topic, steady.rate, records)
            found = pool.submit(_arrivals, plan, servers, output, records, deadline)
            side.round(
                {
                    "config": config,
                    "topic": topic,
                    "output": output,
                    "group": topic,
                    "batch": 10_000,
                    "records": records,
                    "seconds": steady.seconds + _PATIENCE,
                    "counting": False,
                }
            )
            sent.result()
            return spread(found.result(), records, steady)

    return round_of


def _arrivals(
    plan: Plan, servers: LocalStack, topic: str, records: int, deadline: Deadline
) -> list[float]:
    """Return the seconds from each record's making until it could be read, without the first.

    What comes again counts once, and not at all what was made while the query began.

    Raises:
        AssertionError: some did not come in time.
    """
    settings = {
        "bootstrap.servers": servers.bootstrap_servers,
        "group.id": "reader",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(plan.partitions)])
    seen: dict[int, tuple[int, int]] = {}
    try:
        while len(seen) < records and not deadline.expired:
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            value = message.value() or b""
            made, number = int(value[:PRODUCED]), int(value[PRODUCED:].rstrip(b"!"))
            seen.setdefault(number, (made, time.time_ns()))
    finally:
        consumer.close()
    if len(seen) < records:
        raise AssertionError(f"{topic} has {len(seen)} of {records} records")
    begun = min(made for made, _ in seen.values()) + plan.steady.warm_up * 1e9
    return [(at - made) / 1e9 for made, at in seen.values() if made >= begun]


def _figures(plan: Plan, rounds: Rounds) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, ratios in by_round(rounds).items():
        figures[name] = round(median(ratios), 3)
        figures[f"{name}s"] = [round(ratio, 3) for ratio in ratios]
    for side in rounds.results:
        for key in ("p50", "p99"):
            figures[f"{side}_{key}_s"] = rounds.values(side, key)
    return figures | {"rounds": plan.rounds, "rate": plan.steady.rate}
