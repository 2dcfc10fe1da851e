"""The demo of the collector: its events, its story, and the comparison of outcomes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from examples.collector.__main__ import app
from examples.collector.demo import (
    EVENTS,
    OUTCOMES,
    PARTITIONS,
    CollectorDemoPhase,
    Facts,
    channels,
    next_phase,
)
from examples.collector.groups import LOST_TTL, Fate, Schedule, compare, schedule
from examples.harness.daemons import Daemon, Endpoints
from examples.harness.flights import read_flights
from examples.harness.progress import gates, patience
from headrace import config
from headrace.apps.collector import Collector, daemon_config, group_of
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Event
from headrace.testing.keyed import KeyedTest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

#: What a record of the reducer's time is apart from the one before, in milliseconds.
_STEP = 10

_END = b'{"type": "EventGroupCollectorEntityDone", "id": "end", "group": "end"}'


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """The flights of three days."""
    return read_flights(2600)


@pytest.fixture(scope="module")
def planned(flights: pd.DataFrame) -> Schedule:
    """Their groups and events."""
    return schedule(flights)


@pytest.fixture(scope="module")
def outcomes(planned: Schedule) -> list[dict[str, Any]]:
    """Return the collector's outcomes of the events."""
    settings = channels("arrow")["collector"]["processor"]["options"]
    test = KeyedTest(Collector(**settings), FoldSettings(outputs=("out",), value="bytes"))
    facts = [
        (group_of(Event(value, 0, EVENTS, 0, 0)), value, at * _STEP)
        for at, (_, value) in enumerate(planned.records())
    ]
    test.send(*facts, ("end", _END, len(facts) * _STEP + LOST_TTL * 1000 + 1))
    return [each.value for each in test.outputs]


def test_the_events_have_all_that_can_go_wrong(planned: Schedule) -> None:
    """Groups of each fate, repetitions, groups created late; and each event but the lost ones."""
    fates = [group.fate for group in planned.groups]
    assert {fate: fates.count(fate) > 2 for fate in Fate} == dict.fromkeys(Fate, True)
    assert planned.orphaned > 2
    assert planned.twice == len(planned.events) - len(set(planned.events)) > 2
    every = {
        (number, flight)
        for number, group in enumerate(planned.groups)
        for flight in [None, *group.results]
        if flight is None or flight != group.lost
    }
    assert set(planned.events) == every


def test_the_events_are_the_same_each_time(planned: Schedule, flights: pd.DataFrame) -> None:
    """They are drawn from a fixed seed."""
    assert schedule(flights) == planned


def test_the_collector_s_outcomes_are_verified(
    planned: Schedule, outcomes: list[dict[str, Any]], flights: pd.DataFrame
) -> None:
    """Each group has its one outcome, and the verdict has the numbers."""
    verdict = compare(outcomes, planned.groups, flights)
    count = len(planned.groups)
    assert str(verdict) == f"verified: {count} groups, {count} outcomes, 0 twice, 0 missing"
    assert verdict.holds


def of(outcomes: list[dict[str, Any]], planned: Schedule, fate: Fate) -> dict[str, Any]:
    """Return the outcome of the first group with this fate and several flights."""
    wanted = next(g.name for g in planned.groups if g.fate is fate and len(g.results) > 2)
    return next(outcome for outcome in outcomes if outcome["id"] == wanted)


def doubled(outcomes: list[dict[str, Any]], _: Schedule) -> None:
    """Duplicate an outcome."""
    outcomes.append(outcomes[3])


def removed(outcomes: list[dict[str, Any]], _: Schedule) -> None:
    """Remove an outcome."""
    del outcomes[3]


def replaced(outcomes: list[dict[str, Any]], _: Schedule) -> None:
    """Duplicate an outcome in place of another."""
    outcomes[3] = outcomes[4]


def renamed(outcomes: list[dict[str, Any]], _: Schedule) -> None:
    """Name a group that was not created."""
    outcomes[3]["id"] = "nobody"


def other_result(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Change a delay."""
    results = of(outcomes, planned, Fate.SUCCESS)["results"]
    results[next(iter(results))] = {"arr_delay": 9999}


def less_results(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Remove a flight from a success."""
    of(outcomes, planned, Fate.SUCCESS)["results"].popitem()


def other_payload(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Remove the payload."""
    of(outcomes, planned, Fate.FAILURE)["payload"] = None


def succeeded(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Turn the failure of a cancelled flight into a success."""
    of(outcomes, planned, Fate.FAILURE)["type"] = "EventGroupCollectorSuccess"


def other_error(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Set an error that no flight had."""
    of(outcomes, planned, Fate.FAILURE)["error"] = "Operation timed out after 3600 seconds"


def other_entity(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Name a flight in a time-out."""
    outcome = of(outcomes, planned, Fate.TIMEOUT)
    outcome["entity"] = next(iter(outcome["results"]), "x")


def found_again(outcomes: list[dict[str, Any]], planned: Schedule) -> None:
    """Add a result of the flight whose event was lost."""
    outcome = of(outcomes, planned, Fate.TIMEOUT)
    (group,) = (each for each in planned.groups if each.name == outcome["id"])
    assert group.lost is not None
    outcome["results"][group.lost] = group.results[group.lost]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (doubled, "1 twice, 0 missing, 1 wrong: the arrival delays"),
        (removed, "0 twice, 1 missing, 1 wrong: the arrival delays"),
        (replaced, "1 twice, 1 missing, 1 wrong: the arrival delays"),
        (renamed, "0 twice, 1 missing, 1 wrong: there is no group nobody"),
        (other_result, "0 twice, 0 missing, 2 wrong"),
        (less_results, "0 twice, 0 missing, 2 wrong"),
        (other_payload, "0 twice, 0 missing, 1 wrong"),
        (succeeded, "has failed, and there is EventGroupCollectorSuccess"),
        (other_error, "0 twice, 0 missing, 1 wrong"),
        (other_entity, "0 twice, 0 missing, 1 wrong"),
        (found_again, "0 twice, 0 missing, 1 wrong"),
    ],
)
def test_each_wrong_outcome_is_found(
    harm: Callable[[list[dict[str, Any]], Schedule], None],
    words: str,
    planned: Schedule,
    outcomes: list[dict[str, Any]],
    flights: pd.DataFrame,
) -> None:
    """A repeated, a missing and a wrong outcome are found, each by itself."""
    harmed = copy.deepcopy(outcomes)
    harm(harmed, planned)
    verdict = compare(harmed, planned.groups, flights)
    assert not verdict.holds
    assert str(verdict).startswith(f"NOT verified: {len(planned.groups)} groups, ")
    assert words in str(verdict)


ALL = frozenset(range(PARTITIONS))
HALF = frozenset(range(PARTITIONS // 2))
NONE: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("phase", "facts", "then"),
    [
        (CollectorDemoPhase.STARTING, Facts(0, 100, [ALL, NONE]), CollectorDemoPhase.STARTING),
        (CollectorDemoPhase.STARTING, Facts(0, 100, [HALF, NONE]), CollectorDemoPhase.STARTING),
        (
            CollectorDemoPhase.STARTING,
            Facts(0, 100, [HALF, ALL - HALF]),
            CollectorDemoPhase.FLOWING,
        ),
        (
            CollectorDemoPhase.FLOWING,
            Facts(24, 100, [HALF, ALL - HALF]),
            CollectorDemoPhase.FLOWING,
        ),
        (CollectorDemoPhase.FLOWING, Facts(25, 100, [ALL, NONE]), CollectorDemoPhase.FLOWING),
        (
            CollectorDemoPhase.FLOWING,
            Facts(25, 100, [HALF, ALL - HALF]),
            CollectorDemoPhase.TAKING_OVER,
        ),
        (
            CollectorDemoPhase.TAKING_OVER,
            Facts(60, 100, [HALF, NONE], 5),
            CollectorDemoPhase.TAKING_OVER,
        ),
        (
            CollectorDemoPhase.TAKING_OVER,
            Facts(60, 100, [ALL, NONE], 0),
            CollectorDemoPhase.TAKING_OVER,
        ),
        (
            CollectorDemoPhase.TAKING_OVER,
            Facts(60, 100, [ALL, NONE], 1),
            CollectorDemoPhase.RETURNING,
        ),
        (
            CollectorDemoPhase.RETURNING,
            Facts(60, 100, [ALL, NONE], 9),
            CollectorDemoPhase.RETURNING,
        ),
        (
            CollectorDemoPhase.RETURNING,
            Facts(60, 100, [HALF, ALL - HALF], 9),
            CollectorDemoPhase.FINISHING,
        ),
        (
            CollectorDemoPhase.FINISHING,
            Facts(99, 100, [HALF, ALL - HALF], 9),
            CollectorDemoPhase.FINISHING,
        ),
        (
            CollectorDemoPhase.FINISHING,
            Facts(100, 100, [HALF, ALL - HALF], 9),
            CollectorDemoPhase.DONE,
        ),
        (CollectorDemoPhase.DONE, Facts(100, 100, [HALF, ALL - HALF], 9), CollectorDemoPhase.DONE),
    ],
)
def test_a_phase_ends_with_its_fact(
    phase: CollectorDemoPhase, facts: Facts, then: CollectorDemoPhase
) -> None:
    """A phase does not end before its fact."""
    assert next_phase(phase, facts) is then


def test_each_phase_has_a_gate_and_an_end() -> None:
    """More is produced from phase to phase, and none is waited for without end."""
    shares = [gates(CollectorDemoPhase)[phase].value for phase in CollectorDemoPhase]
    assert shares == sorted(shares)
    assert set(patience(CollectorDemoPhase)) == set(CollectorDemoPhase) - {CollectorDemoPhase.DONE}


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_the_daemons_run_the_command_s_channel(engine: str, tmp_path: Path) -> None:
    """Their file loads, and the channel is that of run, but for times longer than a restart."""
    daemon = Daemon("one", tmp_path, Endpoints("a:1", "b:2"), channels(engine))
    loaded = config.load(daemon.config_file).channels
    wanted = daemon_config.CollectorOptions("a:1", EVENTS, OUTCOMES, engine=engine)
    same = daemon_config.configuration(wanted)
    same["channels"]["collector"]["processor"]["options"] = {
        "mode": "strict",
        "orphan_ttl": "1h",
        "late_ttl": "1h",
    }
    assert list(loaded) == ["collector.rekey", "collector"]
    assert loaded == daemon_config.checked(same, tmp_path / "x.yaml").channels


@pytest.mark.parametrize("arguments", [["--days", "0"], ["--days", "366"], ["--engine", "x"]])
def test_a_command_line_that_cannot_be_used_is_refused(arguments: list[str]) -> None:
    """With 2; the option is named."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr
