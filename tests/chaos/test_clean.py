from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.chaos.run import Plan, Run
from benchmarks.chaos.schedule import Fault, Kind, Schedule
from benchmarks.chaos.world import CHANNELS, Setting

if TYPE_CHECKING:
    from pathlib import Path

_ONE, _TWO, _THREE = (f"member-{number}" for number in (1, 2, 3))

#: Two joins, two leaves and two rolling restarts, the former during the latter.
_SCHEDULE = Schedule(
    seed=0,
    seconds=12.0,
    clean_until=12.0,
    members=(_ONE, _TWO, _THREE),
    running=(_ONE, _TWO),
    faults=(
        Fault(1.0, Kind.ROLLING_RESTART, "all"),
        Fault(2.0, Kind.JOIN, _THREE),
        Fault(6.0, Kind.LEAVE, _ONE),
        Fault(6.5, Kind.ROLLING_RESTART, "all"),
        Fault(8.0, Kind.JOIN, _ONE),
        Fault(10.0, Kind.LEAVE, _THREE),
    ),
)

#: The sinks of the benchmark, and one that ships with Headrace. No clean event needs a session to
#: end, and none is to end because a machine is slow.
_SETTING = Setting(
    partitions=4,
    session=20.0,
    channels={
        **CHANNELS,
        "function": {
            "processor": {"type": "simple"},
            "sink": {"type": "function", "function": "benchmarks.chaos.functions:store"},
            "offsets": {"type": "kafka"},
        },
    },
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clean_events_repeat_nothing_with_any_sink(tmp_path: Path) -> None:
    """Joins, leaves and rolling restarts cost no record and repeat none, in every channel.

    Nothing follows that could hide it: the counts at the end are those of clean events alone, and
    every member ends with code 0.
    """
    report = Run(Plan(_SCHEDULE, setting=_SETTING), tmp_path).report()
    figures = report.figures
    assert figures["holds"], report.as_table()
    assert figures["by_channel"].keys() == _SETTING.channels.keys()
    for found in figures["by_channel"].values():
        assert (found["duplicated"], found["disordered"]) == (0, 0), report.as_table()
    assert set(figures["exits"]) == {"0"}
