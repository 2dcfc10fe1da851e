"""The semantics of topologies against Kafka Streams itself, by its test driver."""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING

import pytest

from tests.streams.conformance import difference, difference_of_program, recorded
from tests.streams.oracle import ask_oracle
from tests.streams.scenario import KINDS, scenario

if TYPE_CHECKING:
    from pathlib import Path

#: Scenarios of a run, of all kinds by turns. Each takes a tenth of a second of work.
_SCENARIOS = 200


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_reference_gives_kafka_streams_answers_to_random_scenarios(tmp_path: Path) -> None:
    """Outputs record by record, and stores at the end, are Kafka Streams' for any topology.

    With its own rules in place of these it gives what Headrace's operators give.
    """
    seed = SystemRandom().randrange(10**9)
    scenarios = [
        scenario(seed + number, KINDS[number % len(KINDS)]) for number in range(_SCENARIOS)
    ]
    answers = ask_oracle(scenarios, tmp_path)
    found = [
        text
        for each, answer in zip(scenarios, answers, strict=True)
        if (text := difference(each, answer))
    ]
    ours = [text for each in scenarios if (text := difference_of_program(each))]
    print(  # noqa: T201 - what was compared
        f"seed {seed}: {_SCENARIOS} scenarios, {len(found)} differ, and {len(ours)} of Headrace's"
    )
    assert not found, f"seed {seed}, {len(found)} of {_SCENARIOS}:\n{found[0]}"
    assert not ours, f"seed {seed}, {len(ours)} of {_SCENARIOS}:\n{ours[0]}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_recorded_answers_are_what_kafka_streams_gives(tmp_path: Path) -> None:
    """The unit tests' recording is what Kafka Streams says to the same scenarios now."""
    known = recorded()
    assert ask_oracle([each for each, _ in known], tmp_path) == [answer for _, answer in known]
