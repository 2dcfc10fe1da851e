"""Headrace as a library: a channel with a custom processor, in your own process.

    python examples/library.py localhost:9092 localhost:2181 events 1000

reads ``events`` until 1,000 records have come, and prints how many came from each partition.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from threading import Event
from typing import TYPE_CHECKING

from headrace import (
    Batch,
    BatchProcessor,
    BatchResponse,
    Config,
    Deadline,
    KafkaController,
    TopicPartition,
    configure_logging,
)

if TYPE_CHECKING:
    from concurrent.futures import Future


class Counting(BatchProcessor):
    """Counts records by partition; ``enough`` is set when ``wanted`` have come."""

    def __init__(self, wanted: int) -> None:
        self.counts: Counter[TopicPartition] = Counter()
        self.enough = Event()
        self._wanted = wanted

    def on_next_batch(self, batch: Batch) -> BatchResponse | Future[BatchResponse]:
        """Count, and commit past the batch."""
        self.counts[batch.partition] += len(batch)
        if self.counts.total() >= self._wanted:
            self.enough.set()
        return BatchResponse.advance()


def count(servers: str, zookeeper: str, topic: str, wanted: int, state: str) -> Counting:
    """Read until ``wanted`` records have come or a minute is over; return the processor."""
    counting = Counting(wanted)
    config = Config.model_validate(
        {
            "instance_id": "example",
            "state_dir": state,
            "kafka": {"bootstrap_servers": servers},
            "zookeeper": {"hosts": zookeeper},
            "logging": {"level": "warning"},
            "channels": {
                "counting": {
                    "topics": [topic],
                    "group": "example",
                    "processor": {"type": "custom", "factory": "library:Counting"},
                }
            },
        }
    )
    configure_logging(config.logging)
    controller = KafkaController(config, processors={"counting": counting})
    controller.start(Deadline.after(60))
    try:
        counting.enough.wait(60)
    finally:
        controller.stop(Deadline.after(30))
    return counting


def main() -> None:
    """Run with the arguments of the command line."""
    servers, zookeeper, topic, wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as state:
        counting = count(servers, zookeeper, topic, int(wanted), state)
    for partition, records in sorted(counting.counts.items()):
        sys.stdout.write(f"{partition}: {records}\n")


if __name__ == "__main__":
    main()
