"""A worker killed at every line, one process after the other.

    python -m tests.integration.apps.worker_killed FOLDER

The topics are files: the assignments are one for each process, their offset is a number, and the
answers are lines. A process works on all that those before it have not committed.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.workflow import turnaround
from examples.workflow.turnaround import LEDGER, Ledger
from headrace.apps.workflow import Call, Workflows, worker
from headrace.apps.workflow.messages import start_message
from headrace.apps.workflow.reducer import WorkflowReducer
from headrace.apps.workflow.worker import AssignmentProcessor
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.extensions.keyed.codecs import to_json
from headrace.extensions.keyed.settings import FoldSettings
from headrace.processors.contract import ChannelContext
from headrace.telemetry.metrics import Metrics
from headrace.testing.keyed import KeyedTest
from headrace.testing.kills import killed_at_every_line
from headrace.testing.records import make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.kafka.topic_producer import KeyValue

WAIT = 30.0

#: Milliseconds that a call may take: longer than the test.
_TIMEOUT = 3_600_000

#: Lines that loops go through count so often at most: there is more to do in each process.
_PASSES = 2

flows = Workflows()
flows.process(turnaround.clean)
flows.define("cleaning", 1, Call("clean").limited(timeout=_TIMEOUT / 1000))


class Files:
    """The files that outlive a process."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.db"
        self._offset = folder / "offset"
        self._answers = folder / "answers"

    def send(self, answers: Sequence[KeyValue]) -> None:
        """Store answers."""
        with self._answers.open("ab", buffering=0) as file:
            file.write(b"".join(value + b"\n" for _, value in answers))

    def answers(self) -> list[dict[str, Any]]:
        """Return all answers that were stored."""
        return [json.loads(line) for line in self._answers.read_bytes().splitlines()]

    @property
    def offset(self) -> int:
        """The next assignment to be read."""
        return int(self._offset.read_text()) if self._offset.exists() else 0

    def commit(self, offset: int) -> None:
        """Store the offset, whole or not at all."""
        written = self._offset.with_suffix(".new")
        written.write_text(str(offset))
        written.replace(self._offset)


def assignment(test: KeyedTest, number: int) -> bytes:
    """Return the call that the reducer makes for an instance."""
    name = f"i{number}"
    made = test.send(
        (name, start_message(name, "cleaning@1", {}), 1), now=int(SYSTEM_CLOCK.time() * 1000)
    )
    (found,) = (each.value for each in made if each.to == "assignments")
    return to_json(found)


def reducing() -> KeyedTest:
    """Return the reducer of the instances."""
    return KeyedTest(
        WorkflowReducer(flows.check()), FoldSettings(("assignments", "results", "outcomes"))
    )


def prepare(files: Files) -> Callable[[int], Callable[[], object]]:
    """Return what makes the work of each process."""

    def prepared(number: int) -> Callable[[], object]:
        test, start = reducing(), files.offset
        messages = [assignment(test, each) for each in range(start, number + 1)]
        context = ChannelContext("assignments", "workers", Metrics())

        def work() -> None:
            processor = AssignmentProcessor(flows, lambda: files, 2)
            processor.open(context)
            processor.on_next_batch(make_batch(messages, start=start)).result(WAIT)
            files.commit(number + 1)
            processor.close(Deadline.after(WAIT))

        return work

    return prepared


def main(folder: Path) -> None:
    """Kill workers at every line, and check what they have left."""
    files = Files(folder)
    os.environ[LEDGER] = str(files.ledger)
    Ledger.create(files.ledger).close()
    last = killed_at_every_line(prepare(files), [worker, turnaround], passes=_PASSES)
    names = {f"i{number}" for number in range(last + 1)}
    effects, calls = Ledger(files.ledger).effects(), Ledger(files.ledger).calls()
    assert effects == {(name, "clean"): (1, 1) for name in names}, effects
    answered = Counter(answer["instance"] for answer in files.answers())
    assert answered.keys() == names
    test = reducing()
    for number in range(last + 1):
        assignment(test, number)
    made = test.send(*((answer["instance"], answer, 2) for answer in files.answers()))
    outcomes = Counter(each.value["instance"] for each in made if each.to == "outcomes")
    assert outcomes == dict.fromkeys(names, 1)
    again = calls.total() - len(calls)
    sys.stdout.write(f"{last} kills, {again} calls made again, {answered.total()} answers\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
