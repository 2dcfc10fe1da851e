"""Kafka Streams as an oracle: its own test driver runs scenarios, in one JVM for all."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.errors import LocalStackError
from headrace.devstack.jars import Coordinate, JarSet, cached
from headrace.devstack.jvm import SHORT_LIVED, java_command, require_java
from tests.streams.reference import Held, Output, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.streams.scenario import Scenario

#: Kafka Streams with its test driver and all that they depend on, and a logger that says nothing.
TEST_DRIVER = JarSet(
    "kafka-streams-test-4.3.0",
    "jars of Kafka Streams' test driver",
    (
        Coordinate("org.apache.kafka", "kafka-streams-test-utils", "4.3.0"),
        Coordinate("org.slf4j", "slf4j-nop", "1.7.36"),
    ),
    needs=True,
    size=94,
    folder=Path(__file__).parent,
)

_SOURCE = Path(__file__).with_name("StreamsOracle.java")

_FETCH_TIMEOUT_S = 300
_CHECK_TIMEOUT_S = 60

#: Seconds for each scenario, and for the JVM itself. One takes a tenth of a second of work.
_SCENARIO_S = 5
_START_S = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of Kafka Streams, record by record, and the rows of its stores at the end."""

    outputs: list[Output]
    stores: dict[str, dict[str, Held]]


def oracle_command(folder: Path) -> list[str]:
    """Return the command of the oracle; skip the test where it cannot be had here.

    Blocks while jars are fetched, once per user.
    """
    try:
        java = require_java()
        jars = cached(TEST_DRIVER, deadline=Deadline.after(_FETCH_TIMEOUT_S))
    except LocalStackError as error:
        pytest.skip(f"no Kafka Streams: {error}")
    described = subprocess.run(
        [str(java.path), "--describe-module", "jdk.compiler"],
        capture_output=True,
        check=False,
        timeout=_CHECK_TIMEOUT_S,
    )
    if described.returncode != 0:
        pytest.skip(
            f"{java.path} has no compiler for {_SOURCE.name}: apt-get install default-jdk-headless"
        )
    return java_command(
        str(_SOURCE), [str(folder)], class_path=jars, heap="512m", flags=[SHORT_LIVED]
    )


def ask_oracle(scenarios: Sequence[Scenario], folder: Path) -> list[Answer]:
    """Return Kafka Streams' answer to each scenario. Blocks; skips where it cannot be had.

    ``folder`` is for its stores.

    Raises:
        AssertionError: a scenario could not be run.
    """
    return [
        answer_of(document, scenario)
        for document, scenario in zip(documents_of(scenarios, folder), scenarios, strict=True)
    ]


def documents_of(scenarios: Sequence[Scenario], folder: Path) -> list[dict[str, Any]]:
    """Return the oracle's answers as it wrote them; see :func:`ask_oracle`."""
    done = subprocess.run(
        oracle_command(folder),
        input="".join(f"{json.dumps(scenario)}\n" for scenario in scenarios),
        capture_output=True,
        check=False,
        text=True,
        timeout=_START_S + _SCENARIO_S * len(scenarios),
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2_000:]
    assert len(lines) == len(scenarios), done.stderr[-2_000:]
    return [json.loads(line) for line in lines]


def answer_of(document: dict[str, Any], scenario: Scenario) -> Answer:
    """Return what a line of the oracle says."""
    assert "error" not in document, f"{document['error']}: {json.dumps(scenario)}"
    outputs = [
        Output(index, topic, key, _row(value), time)
        for index, topic, key, value, time in document["outputs"]
    ]
    stores = {
        name: {key: Held(Row(value["n"], value["s"]), time) for key, (value, time) in rows.items()}
        for name, rows in document["stores"].items()
    }
    return Answer(outputs, stores)


def _row(value: dict[str, Any] | None) -> Row | None:
    return None if value is None else Row(value["n"], value["s"])
