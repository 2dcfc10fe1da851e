"""Compare a reference's run with the oracle's answer, and Headrace's with the reference's.

Answers are kept for tests without Java.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.streams import StreamsTest
from tests.streams.oracle import answer_of
from tests.streams.program import write_topology
from tests.streams.reference import KAFKA_STREAMS, Output, Reference, Row, Windowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.streams import OutRecord
    from tests.streams.oracle import Answer
    from tests.streams.reference import Difference
    from tests.streams.scenario import Scenario

#: Scenarios with Kafka Streams' answers: ``python -m tests.streams record`` writes them.
RECORDED = Path(__file__).with_name("recorded.jsonl")


def recorded() -> list[tuple[Scenario, Answer]]:
    """Return the recorded scenarios with their answers."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    return [(each["scenario"], answer_of(each["answer"], each["scenario"])) for each in documents]


def difference(
    scenario: Scenario, answer: Answer, rules: frozenset[Difference] = KAFKA_STREAMS
) -> str | None:
    """Return in which record or store the reference differs, None where it does in none."""
    reference = Reference(scenario, rules)
    ours, theirs = by_topic(reference.run(scenario["records"])), by_topic(answer.outputs)
    if ours != theirs:
        index = next(
            index
            for index in range(len(scenario["records"]))
            if _of(ours, index) != _of(theirs, index)
        )
        return (
            f"after record {index} {scenario['records'][index]}: Kafka Streams wrote "
            f"{_of(theirs, index)}, the reference {_of(ours, index)}\n{json.dumps(scenario)}"
        )
    return _difference_of_stores(scenario, answer, reference)


def difference_of_program(scenario: Scenario) -> str | None:
    """Return where Headrace's own operators differ from the reference, None where in nothing."""
    expected: dict[str, list[tuple[str, Row | None, int]]] = {
        node["topic"]: [] for node in scenario["nodes"] if node["op"] == "to"
    }
    for output in Reference(scenario).run(scenario["records"]):
        # a window is in the row, in place of the key
        key = output.key.partition("@")[0]
        expected[output.topic].append((key, output.value, output.time))
    test = StreamsTest(write_topology(scenario))
    for topic, key, row, time in scenario["records"]:
        test.pipe(topic, row, key=key, time=time)
    for topic, rows in expected.items():
        found = [(_key(each), _row(each), each.time) for each in test.read(topic)]
        if found != rows:
            return f"{topic}: Headrace wrote {found}, the reference {rows}\n{json.dumps(scenario)}"
    return None


def _key(record: OutRecord) -> str:
    assert record.key is not None
    # the key of a withdrawn window has its bounds as well
    return str(json.loads(record.key)[0]) if record.key.startswith("[") else record.key


def _row(record: OutRecord) -> Row | None:
    value = record.value
    if value is None:
        return None
    if "best" in value:
        return Row(value["best"][0], ",".join(map(str, value["best"])))
    # a group of a table that lost all its rows has no sum, and Kafka Streams has 0
    return Row(value["n"] or 0, value["s"])


def by_topic(outputs: Iterable[Output]) -> list[Output]:
    """Return outputs by record and topic: between topics there is no order."""
    return sorted(outputs, key=lambda output: (output.index, output.topic))


def _of(outputs: list[Output], index: int) -> list[Output]:
    return [output for output in outputs if output.index == index]


def _difference_of_stores(scenario: Scenario, answer: Answer, reference: Reference) -> str | None:
    found = reference.stores()
    assert found.keys() == answer.stores.keys()
    for name, ours in found.items():
        theirs = answer.stores[name]
        if isinstance(reference.operators[name], Windowed):
            # Kafka Streams keeps windows that are over for a while
            theirs = {key: held for key, held in theirs.items() if key in ours}
        if ours != theirs:
            return (
                f"store {name}: Kafka Streams has {theirs}, the reference {ours}\n"
                f"{json.dumps(scenario)}"
            )
    return None
