from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.chaos.run import Plan, Run
from benchmarks.chaos.schedule import Fault, Kind, Schedule
from benchmarks.chaos.world import Setting

if TYPE_CHECKING:
    from benchmarks.report import Report

pytestmark = pytest.mark.slow

#: A freeze beyond the session and a kill: each hits a member in the middle of its work. The freeze
#: comes while the other member runs, and lasts until that one has surely stored what was frozen.
_SCHEDULE = Schedule(
    seed=0,
    seconds=22.0,
    clean_until=0.0,
    members=("member-1", "member-2"),
    running=("member-1", "member-2"),
    faults=(
        Fault(3.0, Kind.FREEZE, "member-2", lasts=12.0),
        Fault(18.0, Kind.KILL, "member-1"),
    ),
)

#: Long beside everything else that a batch takes, so that a fault comes while it goes on.
_WORK = 0.4

_SETTING = Setting(
    work=_WORK,
    sinks="tests.chaos.flawed",
    channels={
        "unfenced": {"sink": "Unfenced"},
        "commit-first": {"sink": "CommitFirst", "offsets": {"type": "kafka"}},
        "dropping": {"sink": "Dropping", "offsets": {"type": "kafka"}},
    },
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the oracle's report on three sinks that are each wrong in one way."""
    return Run(Plan(_SCHEDULE, setting=_SETTING), tmp_path_factory.mktemp("chaos")).report()


@pytest.fixture
def by_channel(report: Report) -> dict[str, dict[str, Any]]:
    """Return the report's figures by channel."""
    found: dict[str, dict[str, Any]] = report.figures["by_channel"]
    return found


@pytest.mark.timeout(1800)
def test_without_fencing_duplicates_are_reported(by_channel: dict[str, dict[str, Any]]) -> None:
    """A frozen member that goes on stores what its successor has stored."""
    assert by_channel["unfenced"]["duplicated"] > 0


@pytest.mark.timeout(1800)
def test_a_commit_before_the_sink_is_reported_as_loss(
    by_channel: dict[str, dict[str, Any]],
) -> None:
    """A record that was committed and not yet stored when its member was killed is missing."""
    assert by_channel["commit-first"]["lost"] > 0


@pytest.mark.timeout(1800)
def test_a_dropped_batch_is_reported_as_loss(by_channel: dict[str, dict[str, Any]]) -> None:
    """One batch that was never stored is missed among all the others."""
    assert 0 < by_channel["dropping"]["lost"] < by_channel["dropping"]["acknowledged"]


@pytest.mark.timeout(1800)
def test_a_run_with_losses_does_not_hold(report: Report) -> None:
    """The figures' verdict is the one that the exit code is made of."""
    assert not report.figures["holds"]
    assert report.figures["lost"] > 0
