from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.chaos.run import Plan, Run
from benchmarks.chaos.schedule import Fault, Kind, Schedule
from benchmarks.chaos.world import Setting
from headrace.devstack.jars import cached, connector_set

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ONE, _TWO = "member-1", "member-2"

#: Each member is killed and frozen beyond its session, with time to come back between. The first is
#: killed when it has surely stored something: where Spark starts slowly, nobody may be back for the
#: faults that follow, and what moves then is what moved at first.
_SCHEDULE = Schedule(
    seed=0,
    seconds=117.0,
    clean_until=0.0,
    members=(_ONE, _TWO),
    running=(_ONE, _TWO),
    faults=(
        Fault(25.0, Kind.KILL, _ONE),
        Fault(39.0, Kind.FREEZE, _TWO, lasts=7.0),
        Fault(57.0, Kind.KILL, _TWO, lasts=3.0),
        Fault(72.0, Kind.FREEZE, _ONE, lasts=9.0),
        Fault(87.0, Kind.KILL, _ONE, lasts=5.0),
        Fault(102.0, Kind.FREEZE, _TWO, lasts=6.0),
        Fault(111.0, Kind.FREEZE, _ONE, lasts=6.0),
    ),
)

#: How records get to Spark, as a channel says it. By reference batches are larger: at the end a
#: backlog waits, and a job costs more that reads by itself.
_BY_VALUE: Mapping[str, Any] = {}
_BY_REFERENCE: Mapping[str, Any] = {
    "source": "by_reference",
    "batch": {"max_records": 500, "linger": "20ms"},
}


def _setting(source: Mapping[str, Any]) -> Setting:
    spark: dict[str, Any] = {"master": "local[1]", "driver_memory": "768MiB", "warm_up": 1}
    if source:
        spark["connector"] = str(cached(connector_set())[0].parent)
    channel = {
        "processor": {"type": "spark", "reducer": "benchmarks.chaos.delta:reduce"},
        "sink": {"type": "delta", "path": "{folder}"},
        **source,
    }
    return Setting(partitions=4, channels={"delta": channel}, sections={"spark": spark})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "source",
    [pytest.param(_BY_VALUE, id="by_value"), pytest.param(_BY_REFERENCE, id="by_reference")],
)
def test_a_delta_table_has_every_record_once(source: Mapping[str, Any], tmp_path: Path) -> None:
    """Daemons are killed and frozen: each record is in the table, once, whoever read it."""
    report = Run(Plan(_SCHEDULE, setting=_setting(source)), tmp_path).report()
    figures = report.figures
    assert figures["holds"], report.as_table()
    found = figures["by_channel"]["delta"]
    assert (found["lost"], found["duplicated"]) == (0, 0)
    assert found["stored"] >= found["acknowledged"] > 0
