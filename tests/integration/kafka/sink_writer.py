"""Processes that write through a Kafka sink, each killed STEP lines later than the one before.

    python -m tests.integration.kafka.sink_writer FIRST STEP SERVERS GROUP SOURCE TOPIC_ID TOPIC

Each commits a group of two micro-batches in one transaction, which goes the way of one alone. Each
micro-batch has one record of each of two partitions; each record becomes one.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

import headrace.kafka.result_transactions
import headrace.kafka.transactional_producer
import headrace.sinks.kafka
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition, identity_of
from headrace.kafka import ResultTransactions
from headrace.kafka.fencing import fence_producers
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.kafka import KafkaSink
from headrace.testing.kills import killed_at_every_line
from headrace.testing.sinks import micro_batch
from tests.kafka_sinks import WAIT, committed_records

if TYPE_CHECKING:
    from collections.abc import Callable


MODULES = (
    headrace.sinks.kafka,
    headrace.kafka.result_transactions,
    headrace.kafka.result_transactions,
    headrace.kafka.transactional_producer,
)
PARTITIONS = range(2)

#: Micro-batches in a transaction.
TOGETHER = 2


class Owner:
    """Takes over from the process before, as a member does, and looks at what it left."""

    def __init__(
        self, servers: str, group: str, source: str, topic_id: str, topic: str, *, step: int
    ) -> None:
        self._step = step
        self._servers = servers
        self._group = group
        self._source = source
        self._topic_id = topic_id
        self._topic = topic

    def take_over(self, number: int) -> Callable[[], object]:
        """Shut out the process before, compare offsets and records, and return what is next."""
        properties = {"bootstrap.servers": self._servers, "log_level": 0}
        if number >= self._step:
            former = self._producer(number - self._step)
            fence_producers(properties, [former], Deadline.after(WAIT))
        sink = KafkaSink(ResultTransactions(properties, self._group, "m"), self._topic)
        starts = {n: sink.stored_offset(self._identity(n)) or 0 for n in PARTITIONS}
        self._require_whole(starts)
        return lambda: self._write(sink, starts, number)

    def _write(self, sink: KafkaSink, starts: dict[int, int], number: int) -> None:
        staged = [self._stage(sink, starts, behind) for behind in range(TOGETHER)]
        shares = [
            PartitionCommit(
                self._identity(n),
                TopicPartition(self._source, n),
                start,
                start + TOGETHER,
                self._producer(number),
            )
            for n, start in starts.items()
        ]
        sink.commit_all(staged, shares)

    def _stage(self, sink: KafkaSink, starts: dict[int, int], behind: int) -> pa.Table | None:
        """Stage the micro-batch that is so many behind the first one."""
        values = [json.dumps([n, start + behind]) for n, start in starts.items()]
        return sink.stage(micro_batch(f"at-{behind}"), pa.table({"value": values}))

    def _producer(self, number: int) -> str:
        return f"headrace.{self._group}.{number}"

    def _identity(self, number: int) -> str:
        return identity_of("cluster", self._group, self._topic_id, number)

    def _require_whole(self, stored: dict[int, int]) -> None:
        """Require one record for every offset below a stored one, and no other."""
        found = committed_records(self._servers, self._topic)
        places = sorted(json.loads(each.value() or b"") for each in found)
        expected = [[n, offset] for n in PARTITIONS for offset in range(stored[n])]
        if places != expected or any(offset % TOGETHER for offset in stored.values()):
            raise AssertionError(f"stored {stored}, found {places}")
        sys.stdout.write(f"{sum(stored.values())}\n")
        sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Run takeovers that are killed at every line, and check what the last one left."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    first, step, *about = arguments
    owner = Owner(*about, step=int(step))
    last = killed_at_every_line(
        owner.take_over, MODULES, first=int(first), step=int(step), passes=2
    )
    owner.take_over(last + int(step))
    sys.stdout.write(f"ended {last}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
