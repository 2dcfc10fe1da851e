from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from headrace.core.errors import RetryableError
from headrace.processors.contract import BatchResponse
from headrace.sinks.several import SeveralSink, alone
from tests.contracts.places import DeltaPlace
from tests.integration.extensions.spark.channels import ADVANCE, SECONDS, Channel, places

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.spark import MicroBatch

_ROOT = Path(__file__).resolve().parents[4]

#: Fewer cannot be: before and after each of three groups.
_STEPS = 6


def several(df: DataFrame, batch: MicroBatch) -> dict[str, DataFrame]:
    """Return each record's place for one output, and a count for the other."""
    found = places(df, batch)
    return {"places": found, "counts": found.groupBy("partition").count()}


def test_results_of_spark_go_to_outputs_that_catch_up(
    channel: Callable[..., Channel], tmp_path: Path
) -> None:
    """The first table takes nothing when the batch comes again after the second table failed."""
    tables = {name: DeltaPlace(tmp_path / name) for name in ("places", "counts")}
    outputs = {name: place.sink() for name, place in tables.items()}
    sink = SeveralSink([alone(name, each) for name, each in outputs.items()])
    ch = channel(several, sink=sink)
    assert ch.send(0, [b"a", b"b"]).result(SECONDS) == ADVANCE
    real = outputs["counts"].commit
    outputs["counts"].commit = _refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(RetryableError, match="no space"):
        ch.send(0, [b"c"], start=2).result(SECONDS)
    outputs["counts"].commit = real  # type: ignore[method-assign]

    assert ch.offsets()[0] == 2
    again = ch.send(0, [b"c", b"d"], start=2, attempt=2).result(SECONDS)
    assert again == BatchResponse.advance(offset=3)
    assert ch.send(0, [b"d"], start=3).result(SECONDS) == ADVANCE

    assert sorted(row["offset"] for row in tables["places"].rows()) == [0, 1, 2, 3]
    assert sorted(row["count"] for row in tables["counts"].rows()) == [1, 1, 2]


def _refuse(*_: Any) -> NoReturn:
    raise OSError("no space")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_killed_around_every_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Between the commits of Delta and SQL outputs: the next owner completes each of them."""
    command = [
        sys.executable,
        "-m",
        "tests.integration.extensions.spark.outputs_writer",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    last, apart = map(int, done.stdout.split()[-2:])
    assert last >= _STEPS
    assert apart > 0
