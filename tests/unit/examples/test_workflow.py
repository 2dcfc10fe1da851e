"""The demo of workflows: its workflow, its ledger, its kills, and the comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from examples.workflow import turnaround
from examples.workflow.__main__ import app
from examples.workflow.demo import KILLS, InstanceCounts
from examples.workflow.turnaround import LEDGER, Flight, Ledger, Verdict, compare, flows
from headrace.apps.workflow.errors import CallFailedError
from headrace.apps.workflow.messages import Assignment, fail_message, return_message, start_message
from headrace.apps.workflow.reducer import WorkflowReducer
from headrace.extensions.keyed.settings import FoldSettings
from headrace.testing.keyed import KeyedTest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLIGHTS = [Flight("flight-0", 100, True), Flight("flight-1", 200, False)]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Return a ledger that the processes write to."""
    path = tmp_path / "ledger.db"
    monkeypatch.setenv(LEDGER, str(path))
    found = Ledger.create(path)
    yield found
    found.close()
    turnaround._own.ledger.close()
    del turnaround._own.ledger


def played(again: int = 1) -> list[dict[str, Any]]:
    """Run the flights' instances in this process, each call so often; return the outcomes."""
    test = KeyedTest(
        WorkflowReducer(flows.check()), FoldSettings(("assignments", "results", "outcomes"))
    )
    for flight in FLIGHTS:
        start = start_message(flight.instance, "turnaround@1", flight.args)
        made = test.send((flight.instance, start, 0))
        while made:
            calls = [Assignment.of(each.value) for each in made if each.to == "assignments"]
            answers = [answer(call) for call in calls for _ in range(again)]
            made = test.send(*((flight.instance, each, 1) for each in answers)) if answers else []
    return [each.value for each in test.outputs if each.to == "outcomes"]


def answer(call: Assignment) -> dict[str, Any]:
    """Call a process as a worker does."""
    try:
        return return_message(call, flows.processes[call.process](call, **call.args))
    except CallFailedError as error:
        return fail_message(call, str(error), final=True)


@pytest.mark.parametrize("again", [1, 3])
def test_right_outcomes_are_verified(ledger: Ledger, again: int) -> None:
    """Repeated calls under the same key do not change the verdict."""
    verdict = compare(FLIGHTS, played(again), ledger)
    assert verdict.holds
    assert str(verdict) == (
        f"verified: 2 instances, 2 outcomes, 0 twice, 0 missing, {8 * again} calls, 0 applied twice"
    )


def test_wrong_outcomes_and_effects_are_counted(ledger: Ledger) -> None:
    """Outcomes and effects may be repeated, missing or wrong."""
    first, second = played()
    verdict = compare(FLIGHTS, [first, first], ledger)
    assert verdict == Verdict(2, 2, 1, 1, 0, 8, 0, 0)
    assert str(verdict).startswith("NOT verified: 2 instances, 2 outcomes, 1 twice, 1 missing")
    wrong = [{**first, "result": 7}, {**second, "ref": "0.inspect"}, {**first, "instance": "x"}]
    assert compare(FLIGHTS, wrong, ledger).wrong == 3
    ledger.apply(Assignment("flight-0", "elsewhere", 1, "clean", {}), 1)
    verdict = compare(FLIGHTS, [first, second], ledger)
    assert (verdict.applied_twice, verdict.not_applied, verdict.holds) == (1, 1, False)
    more = [*FLIGHTS, Flight("flight-2", 1, flown=True)]
    assert compare(more, [first, second], ledger).not_applied == 5


def test_flights_become_instances() -> None:
    """Those without a departure are cancelled."""
    rows: dict[str, Any] = {"row": [3, 4], "distance": [10, 20], "dep_time": [517.0, None]}
    assert turnaround.flights_of(pd.DataFrame(rows)) == [
        Flight("flight-3", 10, True),
        Flight("flight-4", 20, False),
    ]


def test_there_is_work_at_each_kill() -> None:
    """No more is started than a part beyond the next kill, and all after the last."""
    progress, killed = InstanceCounts(1000), []
    while progress.done < 1000:
        progress.started += progress.may_start
        if progress.kills < len(KILLS):
            assert progress.started < 1000
            assert progress.started >= KILLS[progress.kills][0] * 1000
        progress.done = min(progress.started, progress.done + 40)
        if progress.victims:
            killed.append(progress.victims)
            progress.kills += 1
    assert killed == [victims for _, victims in KILLS]
    assert progress.started == 1000


def test_too_few_or_too_many_instances_are_refused() -> None:
    """There are so many flights, and fewer than a hundred would end between two kills."""
    for number in ("99", "336777"):
        result = CliRunner().invoke(app, ["--instances", number])
        assert result.exit_code == 2
