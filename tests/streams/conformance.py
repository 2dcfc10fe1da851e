"""Compare a reference's run with the oracle's answer; keep answers for tests without Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.streams.oracle import answer_of
from tests.streams.reference import KAFKA_STREAMS, Output, Reference, Windowed

if TYPE_CHECKING:
    from collections.abc import Iterable

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
