from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.chaos.run import Plan, Run
from benchmarks.chaos.schedule import Fault, Kind, Schedule
from benchmarks.chaos.world import Setting

if TYPE_CHECKING:
    from pathlib import Path

_ONE, _TWO = "member-1", "member-2"

#: Each member is killed and frozen beyond its session, with time to come back between.
_SCHEDULE = Schedule(
    seed=0,
    seconds=100.0,
    clean_until=0.0,
    members=(_ONE, _TWO),
    running=(_ONE, _TWO),
    faults=(
        Fault(8.0, Kind.KILL, _ONE),
        Fault(22.0, Kind.FREEZE, _TWO, lasts=7.0),
        Fault(40.0, Kind.KILL, _TWO, lasts=3.0),
        Fault(55.0, Kind.FREEZE, _ONE, lasts=9.0),
        Fault(70.0, Kind.KILL, _ONE, lasts=5.0),
        Fault(85.0, Kind.FREEZE, _TWO, lasts=6.0),
        Fault(94.0, Kind.FREEZE, _ONE, lasts=6.0),
    ),
)

_SETTING = Setting(
    partitions=4,
    ready=180.0,
    channels={
        "delta": {
            "processor": {"type": "spark", "reducer": "benchmarks.chaos.delta:reduce"},
            "sink": {"type": "delta", "path": "{folder}"},
        }
    },
    sections={"spark": {"master": "local[1]", "driver_memory": "768MiB", "warm_up": 1}},
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_delta_table_has_every_record_once(tmp_path: Path) -> None:
    """Whole daemons with Spark are killed and frozen: each record is in the table, once."""
    report = Run(Plan(_SCHEDULE, setting=_SETTING), tmp_path).report()
    figures = report.figures
    assert figures["holds"], report.as_table()
    found = figures["by_channel"]["delta"]
    assert (found["lost"], found["duplicated"]) == (0, 0)
    assert found["stored"] >= found["acknowledged"] > 0
