"""Compare the reference with Kafka Streams, or record its answers.

``python -m tests.streams SEED COUNT [KIND ...]`` runs COUNT scenarios of each kind, all kinds in
one JVM; ``python -m tests.streams record`` writes the scenarios of which the unit tests know the
answers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.streams.conformance import RECORDED, difference
from tests.streams.oracle import answer_of, documents_of
from tests.streams.reference import HEADRACE
from tests.streams.scenario import KINDS, scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.streams.scenario import Scenario

#: Scenarios of each kind that are recorded, and their records.
_RECORDED_SEEDS = range(2)
_RECORDS = 20


def main(arguments: list[str]) -> int:
    """Write for each kind how many scenarios differ, and the first that does."""
    if arguments == ["record"]:
        record()
        return 0
    first, count, *chosen = arguments
    seeds = range(int(first), int(first) + int(count))
    kinds = chosen or KINDS
    answered = answers([scenario(seed, kind) for kind in kinds for seed in seeds])
    failed = 0
    for kind in kinds:
        pairs = [
            (each, answer_of(document, each)) for each, document in answered if each["kind"] == kind
        ]
        found = [text for pair in pairs if (text := difference(*pair))]
        same = sum(not difference(*pair, rules=HEADRACE) for pair in pairs)
        outputs = sum(len(answer.outputs) for _, answer in pairs)
        sys.stdout.write(
            f"{kind}: seeds {first} to {seeds[-1]}, {count} scenarios, {outputs} outputs, "
            f"{len(found)} differ; by Headrace's rules {same} are the same\n"
        )
        sys.stdout.write("".join(f"{text}\n" for text in found[:1]))
        failed += len(found)
    return 1 if failed else 0


def record() -> None:
    """Write scenarios of each kind with Kafka Streams' answers."""
    scenarios = [
        scenario(seed, kind, records=_RECORDS) for kind in KINDS for seed in _RECORDED_SEEDS
    ]
    RECORDED.write_text(
        "".join(
            f"{json.dumps({'scenario': each, 'answer': document}, separators=(',', ':'))}\n"
            for each, document in answers(scenarios)
        ),
        encoding="utf-8",
    )


def answers(scenarios: Sequence[Scenario]) -> list[tuple[Scenario, dict[str, Any]]]:
    """Return scenarios with what the oracle wrote."""
    with tempfile.TemporaryDirectory() as folder:
        return list(zip(scenarios, documents_of(scenarios, Path(folder)), strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
