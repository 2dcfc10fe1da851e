from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.chaos.run import Plan, Run
from benchmarks.chaos.schedule import Fault, Kind, Schedule, draw
from benchmarks.chaos.world import CHANNELS, Setting
from tests.chaos.seeds import STANDBYS

if TYPE_CHECKING:
    from pathlib import Path

_ONE, _TWO = "member-1", "member-2"

#: Each member is killed, and stands still beyond its session: the other one counts on meanwhile,
#: and what the first has under way when it goes on is of an epoch that is over.
_SCHEDULE = Schedule(
    seed=0,
    seconds=55.0,
    clean_until=0.0,
    members=(_ONE, _TWO),
    running=(_ONE, _TWO),
    faults=(
        Fault(4.0, Kind.KILL, _ONE),
        Fault(13.0, Kind.FREEZE, _TWO, lasts=7.0),
        Fault(26.0, Kind.KILL, _TWO, lasts=3.0),
        Fault(37.0, Kind.FREEZE, _ONE, lasts=8.0),
    ),
)

_SETTING = Setting(partitions=4, channels={"keyed": CHANNELS["keyed"]})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_counts_by_key_are_exact_after_kills_and_freezes(tmp_path: Path) -> None:
    """Killed and frozen: outputs count each fact once, and stores and changelog are the same."""
    report = Run(Plan(_SCHEDULE, setting=_SETTING), tmp_path).report()
    figures = report.figures
    assert figures["holds"], report.as_table()
    counted = figures["counted_by_channel"]["keyed"]
    assert counted["facts"] >= figures["acknowledged"] > 0
    assert counted["rows"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", STANDBYS)
def test_counts_by_key_are_exact_where_tasks_move_to_copies(tmp_path: Path, seed: int) -> None:
    """A minute of a drawn schedule: what members go on with from a copy is what was committed."""
    setting = Setting(partitions=4, channels={"standbys": CHANNELS["standbys"]})
    report = Run(Plan(draw(seed, 60.0, clean=0.0), setting=setting), tmp_path).report()
    figures = report.figures
    assert figures["holds"], report.as_table()
    counted = figures["counted_by_channel"]["standbys"]
    assert counted["facts"] >= figures["acknowledged"] > 0
    assert counted["rows"] > 0
    logs = [log.read_text(encoding="utf-8") for log in tmp_path.glob("member-*/daemon.log")]
    assert any("standby_started" in log for log in logs)
