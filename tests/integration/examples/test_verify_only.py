from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from examples.demo.__main__ import app
from examples.demo.record import RunRecord
from examples.demo.reducer import COLUMNS
from examples.harness.flights import read_flights

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 2_000


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Read the first of the real flights, with the table's columns."""
    flights: pd.DataFrame = read_flights(ROWS)[list(COLUMNS)]
    return flights


def verify_only(directory: Path, found: pd.DataFrame) -> tuple[int, str]:
    """Write what a run of the demo keeps, check it, and return exit code and last line."""
    RunRecord(ROWS, ("daemon-1", "daemon-2")).write(directory)
    write_deltalake(directory / "table", pa.Table.from_pandas(found, preserve_index=False))
    return command(directory)


def command(directory: Path) -> tuple[int, str]:
    """Run the command; return exit code and last line."""
    result = CliRunner().invoke(app, ["--verify-only", str(directory)])
    return result.exit_code, result.output.splitlines()[-1]


def test_an_untouched_table_is_verified(tmp_path: Path, flights: pd.DataFrame) -> None:
    """The table of a run exits with 0, given by its work directory or by its own folder."""
    expected = (0, "verified: 2000 events, 0 lost, 0 duplicated")
    assert verify_only(tmp_path, flights) == expected
    assert command(tmp_path / "table") == expected


def test_a_deleted_row_is_told(tmp_path: Path, flights: pd.DataFrame) -> None:
    """One row less exits with 1 and says that one is lost."""
    code, last = verify_only(tmp_path, flights.drop(index=1_234))
    assert (code, last) == (1, "NOT verified: 2000 events, 1 lost, 0 duplicated, 0 altered")


def test_a_duplicated_row_is_told(tmp_path: Path, flights: pd.DataFrame) -> None:
    """One row twice exits with 1 and says that one is duplicated."""
    code, last = verify_only(tmp_path, pd.concat([flights, flights.iloc[[1_234]]]))
    assert (code, last) == (1, "NOT verified: 2000 events, 0 lost, 1 duplicated, 0 altered")


def test_an_altered_row_is_told(tmp_path: Path, flights: pd.DataFrame) -> None:
    """One delay changed exits with 1 and says that one is altered."""
    found = flights.copy()
    found.loc[1_234, "arr_delay"] = -1_000.0
    code, last = verify_only(tmp_path, found)
    assert (code, last) == (1, "NOT verified: 2000 events, 0 lost, 0 duplicated, 1 altered")


def test_a_folder_without_a_table_is_told(tmp_path: Path) -> None:
    """A folder in which no demo ran exits with 1 and is named."""
    code, last = command(tmp_path)
    assert code == 1
    assert f"{tmp_path / 'table'} holds no Delta table" in last


def test_options_of_a_run_are_refused(tmp_path: Path) -> None:
    """With --verify-only nothing is run, so what a run would take is a usage error."""
    arguments = ["--verify-only", str(tmp_path), "--keep"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
