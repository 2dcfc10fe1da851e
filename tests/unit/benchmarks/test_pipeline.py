"""Figures of the benchmark ``pipeline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks.pipeline import missed, require_each_once

if TYPE_CHECKING:
    from pathlib import Path

_MET = {
    "value_ratio_100k": 1.5,
    "reference_ratio_100k": 1.3,
    "batch_ratio_1k": 1.7,
    "latency_p50_ratio": 0.5,
    "latency_p99_ratio": 0.8,
    "delta_commit_growth": 2.0,
}


def test_figures_that_are_as_they_have_to_be_are_not_missed() -> None:
    """A figure at its target has reached it."""
    assert missed(_MET) == []


def test_rates_below_and_times_above_their_targets_are_missed() -> None:
    """Ratios of rates have to be large, those of times small."""
    worse = {"value_ratio_100k": 1.49, "latency_p99_ratio": 0.81, "delta_commit_growth": 2.1}
    assert missed({**_MET, **worse}) == list(worse)


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([0, 1, 2, 2], "4 rows, of 3 records"),
        ([0, 1], "2 rows, of 2 records"),
        ([0, 1, 1], "3 rows, of 2 records"),
    ],
)
def test_a_table_with_another_number_of_rows_is_refused(
    tmp_path: Path, offsets: list[int], told: str
) -> None:
    """Rows that are doubled, that are missing, and both, where their number is right."""
    _write(tmp_path, offsets)
    with pytest.raises(AssertionError, match=f"{told}; 3 were sent"):
        require_each_once(tmp_path, 3)


def test_a_table_with_each_record_once_is_accepted(tmp_path: Path) -> None:
    """The same offset of another partition is another record."""
    _write(tmp_path, [0, 1])
    _write(tmp_path, [0], partition=1)
    require_each_once(tmp_path, 3)


def _write(table: Path, offsets: list[int], partition: int = 0) -> None:
    rows = {"partition": pa.array([partition] * len(offsets), pa.int32()), "offset": offsets}
    write_deltalake(table, pa.table(rows), mode="append")
