"""A member in a process of its own: prints what it is given, until standard input ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.config import load
from headrace.controller import KafkaController
from headrace.logs import configure_logging
from headrace.processors import BatchProcessor, BatchResponse
from tests.integration.channel.rig import CHANNEL, WAIT

if TYPE_CHECKING:
    from headrace.records import Assignment, Batch


class Printer(BatchProcessor):
    """Prints assignments and stored batches."""

    def on_assigned(self, assignment: Assignment) -> None:
        """Print the partition, the epoch and the position."""
        self._print("assigned", assignment, assignment.position)

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Advance."""
        self._print("batch", batch.assignment, batch.next_offset)
        return BatchResponse.advance()

    def on_batch_processed(self, batch: Batch) -> None:
        """Print what is stored."""
        self._print("stored", batch.assignment, batch.next_offset)

    @staticmethod
    def _print(what: str, assignment: Assignment, offset: int) -> None:
        facts = [what, assignment.partition.partition, assignment.epoch, offset]
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run the member that the file named on the command line describes."""
    config = load(Path(sys.argv[1]))
    configure_logging(config.logging)
    controller = KafkaController(config, processors={CHANNEL: Printer()})
    controller.start(Deadline.after(WAIT))
    sys.stdin.read()
    controller.stop(Deadline.after(WAIT))


if __name__ == "__main__":
    main()
