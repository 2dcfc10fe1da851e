"""A member in a process of its own: prints what it is given, until standard input ends.

With ``--hold`` it answers no batch before a line came on standard input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.processors import BatchProcessor, BatchResponse
from headrace.telemetry.logs import configure_logging
from tests.integration.channel.rig import CHANNEL, WAIT

if TYPE_CHECKING:
    from headrace.core.records import Assignment, Batch


class Printer(BatchProcessor):
    """Prints assignments, batches, stored ones and losses; answers while ``may_answer`` is set."""

    def __init__(self) -> None:
        self.may_answer = Event()

    def on_assigned(self, assignment: Assignment) -> None:
        """Print the partition, the epoch and the position."""
        self._print("assigned", assignment, assignment.position)

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Advance."""
        late = not self.may_answer.is_set()
        self._print("batch", batch.assignment, batch.next_offset)
        if late:
            assert self.may_answer.wait(WAIT)
            self._print("late", batch.assignment, batch.next_offset)
        return BatchResponse.advance()

    def on_batch_processed(self, batch: Batch) -> None:
        """Print what is stored."""
        self._print("stored", batch.assignment, batch.next_offset)

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Print it with the position."""
        self._print("lost", assignment, assignment.position)

    @staticmethod
    def _print(what: str, assignment: Assignment, offset: int) -> None:
        facts = [what, assignment.partition.partition, assignment.epoch, offset]
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run the member that the file named on the command line describes."""
    config = load(Path(sys.argv[1]))
    configure_logging(config.logging)
    printer = Printer()
    if "--hold" not in sys.argv:
        printer.may_answer.set()
    controller = KafkaController(config, processors={CHANNEL: printer})
    controller.start(Deadline.after(WAIT))
    for _ in sys.stdin:
        printer.may_answer.set()
    controller.stop(Deadline.after(WAIT))


if __name__ == "__main__":
    main()
