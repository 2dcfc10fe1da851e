"""Questions for rows of a topology under a full load: how late answers are, and what they cost it.

A topology counts a backlog by key, as fast as it can, while another process asks its daemon for
keys over HTTP. Rounds with and without questions take turns; each begins with a new group.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from benchmarks import stack
from benchmarks.lifecycle.daemon import Daemon, Settings
from benchmarks.query_client import Request
from benchmarks.report import Report, say
from benchmarks.rounds import Rounds, alternate
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.rounds import Measured
    from headrace.devstack import LocalStack

_TOPIC, _STORE = "visits", "visits"

#: As topics of ``streams``.
_PRODUCER = {
    "compression.type": "none",
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
}

#: Seconds that filling the topic, and coming to a share of it, may take.
_FILL_TIMEOUT, _PATIENCE = 300.0, 120.0

#: What has to hold: milliseconds at most, and a share at least.
_P99, _RATIO = 5.0, 0.9

_GROUPS = count()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is counted, of how many keys, and how much is asked.

    A round is of ``seconds`` of the backlog, from when a tenth of it is counted.
    """

    rounds: int = 3
    records: int = 9_600_000
    keys: int = 10_000
    partitions: int = 4
    rate: float = 2_000.0
    seconds: float = 6.0
    connections: int = 32

    @property
    def names(self) -> list[str]:
        """Return the keys."""
        return [f"customer-{number:05d}" for number in range(self.keys)]


def run(plan: Plan | None = None) -> Report:
    """Measure by turns with questions and without. Blocks for some minutes.

    Raises:
        AssertionError: an answer was wrong, or a daemon did not do its work.
    """
    plan = plan or Plan()
    with stack.servers() as servers:
        _fill(servers, plan)
        sides = {
            "with_queries": lambda: _round(servers, plan, with_queries=True),
            "without": lambda: _round(servers, plan, with_queries=False),
        }
        found = alternate(sides, plan.rounds, say=say)
    return Report("queries", figures_of(plan, found), by_round(found))


def by_round(found: Rounds) -> dict[str, list[float]]:
    """Return what each figure was round by round."""
    return {
        "p99_ms": found.values("with_queries", "p99_ms"),
        "load_ratio": found.ratios("with_queries", "without", "rate"),
    }


def figures_of(plan: Plan, found: Rounds) -> dict[str, Any]:
    """Return the figures with what they are of."""
    rounds = by_round(found)
    p99, ratio = (round(median(each), 3) for each in rounds.values())
    answered = found.median("with_queries", "answered_per_s")
    missed = ["p99_ms"] if p99 > _P99 else []
    missed += ["load_ratio"] if ratio < _RATIO else []
    return {
        "missed": missed,
        "p99_ms": p99,
        "load_ratio": ratio,
        "p50_ms": found.median("with_queries", "p50_ms"),
        "most_ms": found.values("with_queries", "most_ms"),
        "answered_per_s": answered,
        "targets": {"p99_ms": _P99, "load_ratio": _RATIO},
        **{f"{name}_rounds": [round(value, 3) for value in each] for name, each in rounds.items()},
        "records_per_s": {side: found.values(side, "rate") for side in found.results},
        "cpu_us_per_record": {side: found.median(side, "cpu_us") for side in found.results},
        "asked_per_s": plan.rate,
        "connections": plan.connections,
        "keys": plan.keys,
        "partitions": plan.partitions,
    }


def _fill(servers: LocalStack, plan: Plan) -> None:
    """Produce a record of each key by turns."""
    say(f"filling a topic with {plan.records:,} records")
    stack.create(servers, _TOPIC, plan.partitions)
    client = {"bootstrap.servers": servers.bootstrap_servers, **_PRODUCER}
    producer, deadline = TopicProducer(client, _TOPIC), Deadline.after(_FILL_TIMEOUT)
    turn = [(name.encode(), b"{}") for name in plan.names]
    for _ in range(plan.records // plan.keys):
        producer.send(turn, deadline)
    producer.flush(deadline)


def _round(servers: LocalStack, plan: Plan, *, with_queries: bool) -> Measured:
    """Have a new group count the backlog for a while."""
    group = f"queries-{next(_GROUPS)}"
    stack.create(servers, f"{group}.counts", plan.partitions)
    options = {"kind": "count", "topic": _TOPIC, "output": f"{group}.counts"}
    section = {
        "code": "benchmarks.peer_sides.streams_work:topology",
        "group": group,
        "options": options,
    }
    settings = Settings(
        stack.addresses(servers),
        {},
        {"topologies": {"bench": section}, "logging": {"level": "warning"}},
        {},
    )
    daemon = Daemon(group, servers.directory / "queries", settings)
    try:
        daemon.start()
        (channel,) = daemon.get("channels")["channels"]
        committed = _Committed(servers, channel["group"], plan.partitions)
        try:
            committed.await_share(plan.records // 10)
            return _measure(daemon, committed, plan, with_queries=with_queries)
        finally:
            committed.close()
    finally:
        daemon.kill()


def _measure(daemon: Daemon, committed: _Committed, plan: Plan, *, with_queries: bool) -> Measured:
    """Return the rate of the load, and what came of questions."""
    process = psutil.Process(daemon.pid)
    first, spent = committed.now(), _processor_seconds(process)
    if with_queries:
        answers = _questions(daemon, plan)
    else:
        time.sleep(plan.seconds)
        answers = {}
    last, spent = committed.now(), _processor_seconds(process) - spent
    records, seconds = last[1] - first[1], last[0] - first[0]
    if last[1] >= plan.records:
        raise AssertionError(f"the backlog ended after {seconds:.1f} s; give the plan more records")
    return {
        "rate": round(records / seconds),
        "seconds": round(seconds, 2),
        "records": records,
        "cpu_us": round(spent / records * 1e6, 3),
        **answers,
    }


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _questions(daemon: Daemon, plan: Plan) -> Mapping[str, float]:
    """Have another process ask, and return its figures.

    Raises:
        AssertionError: an answer was wrong, or none.
    """
    url, token = daemon.access
    request = Request(
        url=url,
        path=f"/api/v1/topologies/bench/stores/{_STORE}",
        token=token,
        keys=plan.names,
        partitions=plan.partitions,
        rate=plan.rate,
        seconds=plan.seconds,
        connections=plan.connections,
        seed=1,
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.query_client"],
        input=json.dumps(asdict(request)),
        capture_output=True,
        text=True,
        check=False,
        timeout=plan.seconds + _PATIENCE,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    found = json.loads(done.stdout)
    if found["wrong"] or found["refused"]:
        raise AssertionError(f"answers were wrong: {found}; see {daemon.log_file}")
    return {
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "most_ms": found["most_ms"],
        "answered_per_s": found["rate"],
        "unanswered": found["asked"] - found["answered"],
        "client_processor_s": found["processor_s"],
    }


class _Committed:
    """Reads how much a group has committed. For one thread."""

    def __init__(self, servers: LocalStack, group: str, partitions: int) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": servers.bootstrap_servers, "group.id": group}
        )
        self._places = [ClientPartition(_TOPIC, number) for number in range(partitions)]

    def now(self) -> tuple[float, int]:
        """Return the time, and how many records are committed then."""
        found = self._consumer.committed(self._places, 30.0)
        return SYSTEM_CLOCK.monotonic(), sum(max(0, each.offset) for each in found)

    def await_share(self, records: int) -> None:
        """Wait until so many are committed. Blocks."""
        if not wait_for(lambda: self.now()[1] >= records, Deadline.after(_PATIENCE)):
            raise AssertionError(f"{records:,} records were not committed in {_PATIENCE:.0f} s")

    def close(self) -> None:
        """End the client."""
        self._consumer.close()
