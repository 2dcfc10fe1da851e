from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from examples.demo.demo import verify
from headrace.core.errors import SinkFailedError
from tests.unit.examples.demo.table import flights, write

if TYPE_CHECKING:
    from pathlib import Path

    from examples.demo.demo import Verdict


def check(folder: Path, found: pd.DataFrame) -> Verdict:
    """Write what was found as a table and compare it with the source."""
    return verify(write(folder, found), flights())


def test_the_same_rows_in_another_order_hold(tmp_path: Path) -> None:
    """A table with each flight once is verified, nulls and all, and the verdict says so."""
    verdict = check(tmp_path / "table", flights().sample(frac=1, random_state=1))
    assert verdict.holds
    assert str(verdict) == "verified: 60 events, 0 lost, 0 duplicated"


def test_a_deleted_row_is_lost(tmp_path: Path) -> None:
    """A row that is missing counts as lost, once, and its group's statistics differ."""
    verdict = check(tmp_path / "table", flights().drop(index=31))
    assert not verdict.holds
    assert verdict.differing == 1
    assert str(verdict) == "NOT verified: 60 events, 1 lost, 0 duplicated, 0 altered"


def test_a_repeated_row_is_duplicated(tmp_path: Path) -> None:
    """Each occurrence beyond the first counts as duplicated."""
    source = flights()
    verdict = check(tmp_path / "table", pd.concat([source, source.iloc[[31, 31, 32]]]))
    assert str(verdict) == "NOT verified: 60 events, 0 lost, 3 duplicated, 0 altered"


@pytest.mark.parametrize(
    ("column", "value"), [("arr_delay", 999.0), ("arr_delay", None), ("dest", "SFO")]
)
def test_a_row_with_another_value_is_altered(
    tmp_path: Path, column: str, value: str | float | None
) -> None:
    """A value, or its absence, that is not the source's counts as altered."""
    found = flights()
    found.loc[31, column] = value
    verdict = check(tmp_path / "table", found)
    assert str(verdict) == "NOT verified: 60 events, 0 lost, 0 duplicated, 1 altered"
    assert verdict.differing == (0 if column == "dest" else 1)


def test_a_value_in_place_of_a_null_is_altered(tmp_path: Path) -> None:
    """A null that became a value counts as altered."""
    found = flights()
    found.loc[0, "dep_delay"] = 0.0
    assert check(tmp_path / "table", found).altered == 1


def test_a_row_number_that_the_source_has_not_is_unknown(tmp_path: Path) -> None:
    """A wrong row number is one lost and one unknown row; it does not pass for a duplicate."""
    found = flights()
    found.loc[31, "row"] = 1_000
    verdict = check(tmp_path / "table", found)
    assert str(verdict) == "NOT verified: 60 events, 1 lost, 0 duplicated, 0 altered, 1 unknown"


def test_all_faults_are_counted_apart(tmp_path: Path) -> None:
    """One row deleted, one twice and one altered make one of each."""
    found = flights()
    found.loc[40, "tailnum"] = "N0"
    found = pd.concat([found.drop(index=10), found.iloc[[20]]])
    verdict = check(tmp_path / "table", found)
    assert (verdict.lost, verdict.duplicated, verdict.altered) == (1, 1, 1)


def test_an_empty_table_has_lost_everything(tmp_path: Path) -> None:
    """A table without rows is no error but a verdict."""
    assert check(tmp_path / "table", flights().iloc[:0]).lost == 60


def test_no_table_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    """A folder without a table is named."""
    with pytest.raises(SinkFailedError, match=f"{tmp_path} holds no Delta table"):
        verify(tmp_path, flights())


def test_a_table_with_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A data file that is gone is an error, not a lost row."""
    folder = write(tmp_path / "table", flights())
    next(folder.glob("*.parquet")).unlink()
    with pytest.raises(SinkFailedError, match="cannot be read"):
        verify(folder, flights())
