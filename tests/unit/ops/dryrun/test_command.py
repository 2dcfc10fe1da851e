from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.ops.dryrun import commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

_CODE = """
import pyarrow as pa
import pyarrow.compute as pc


def longest(table, batch):
    assert batch.records == table.num_rows
    return table.select(["offset"]).append_column("size", pc.binary_length(table["value"]))


def nothing(table, batch):
    return None


def several(table, batch):
    return {"a": table.select(["offset"]), "b": None}


def broken(table, batch):
    return helper(table)


def helper(table):
    raise ValueError("half a thought")


def waits(table, batch):
    return pa.table({"wait": pa.array([1], pa.duration("s"))})


def single(table):
    return table
"""

_CONFIG = """
channels:
  main:
    topics: [events]
    group: group
    processor: {{type: arrow, reducer: "{module}:longest"}}
    sink: noop
  other:
    topics: [events]
    group: other
    processor: {{type: simple}}
    sink: "{module}:single"
"""

MODULE = "reducers_of_a_test"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in a folder with a module, a configuration and two records."""
    monkeypatch.setattr(commands, "configure_logging", lambda _: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{MODULE}.py").write_text(_CODE, encoding="utf-8")
    (tmp_path / "headrace.yaml").write_text(_CONFIG.format(module=MODULE), encoding="utf-8")
    (tmp_path / "in.jsonl").write_text('"a"\n"bcd"\n', encoding="utf-8")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["reduce", *arguments])

    return invoke


ARROW = ("--type", "arrow", "--input", "in.jsonl")


def test_rows_are_printed_as_a_table(run: Callable[..., Result]) -> None:
    """The first rows are shown, and how many there are."""
    done = run(*ARROW, "--reducer", f"{MODULE}:longest", "--rows", "1")

    assert done.exit_code == 0, done.output
    assert "2 records, 2 rows, the first 1" in done.output
    assert "size" in done.output


def test_rows_of_several_outputs_are_printed_by_name(run: Callable[..., Result]) -> None:
    """Rows are printed as one table for each output, or each with its output's name."""
    command = (*ARROW, "--reducer", f"{MODULE}:several")
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "output a:" in done.output
    assert "2 records, 2 rows" in done.output
    rows = [json.loads(line) for line in run(*command, "--json").stdout.splitlines()]
    assert rows == [{"output": "a", "row": {"offset": at}} for at in range(2)]


def test_rows_are_printed_as_json(run: Callable[..., Result]) -> None:
    """All rows come as JSON lines on standard output, and nothing else does."""
    done = run(*ARROW, "--reducer", f"{MODULE}:longest", "--json")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [{"offset": 0, "size": 3}, {"offset": 1, "size": 5}]


def test_a_channels_own_reducer_is_tried(run: Callable[..., Result]) -> None:
    """With a configuration the channel says how, and another function may take its place."""
    common = ("--config", "headrace.yaml", "--channel", "main", "--input", "in.jsonl", "--json")
    assert '"size":3' in run(*common).stdout

    done = run(*common, "--reducer", f"{MODULE}:nothing")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "2 records; the reducer returned None" in done.stderr


def test_an_exception_of_the_reducer_is_shown_with_its_own_lines(
    run: Callable[..., Result],
) -> None:
    """The traceback begins in the user's module, and the exit code is 1."""
    done = run(*ARROW, "--reducer", f"{MODULE}:broken")

    assert done.exit_code == 1
    assert "ValueError: half a thought" in done.stderr
    assert 'raise ValueError("half a thought")' in done.stderr
    assert "headrace/ops/dryrun" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--reducer", f"{MODULE}:longst", *ARROW], f"did you mean {MODULE}:longest"),
        (["--reducer", f"{MODULE}:single", *ARROW], "called with (table, batch)"),
        (["--reducer", "a:b", "--sql", "select 1", "--input", "in.jsonl"], "give one of them"),
        (["--sql", "select 1", *ARROW], "--sql goes with --type spark"),
        (["--reducer", f"{MODULE}:longest", "--schema", "a INTT", *ARROW], "INTT is not a type"),
        (["--reducer", "a:b", "--type", "flink", "--input", "in.jsonl"], "is not spark or arrow"),
        (["--input", "in.jsonl", "--type", "arrow"], "give --reducer, --sql or --config"),
        (["--input", "in.jsonl"], "--channel main|other"),
        (["--config", "headrace.yaml", "--input", "in.jsonl"], "--channel main|other"),
        (
            ["--config", "headrace.yaml", "--channel", "other", "--input", "in.jsonl"],
            "of type simple, which has no reducer",
        ),
        (
            ["--reducer", f"{MODULE}:longest", "--type", "arrow", "--input", "nowhere.jsonl"],
            "nowhere.jsonl cannot be read",
        ),
        (
            [
                *("--reducer", f"{MODULE}:longest", "--type", "arrow"),
                *("--input", "t:0:0-5", "--bootstrap-servers", "a b"),
            ],
            "--bootstrap-servers a b: it is not HOST:PORT",
        ),
        (
            ["--reducer", f"{MODULE}:longest", "--type", "arrow", "--input", "t:0:0-5"],
            "--config or --bootstrap-servers",
        ),
    ],
)
def test_an_invalid_command_ends_with_2(
    run: Callable[..., Result], arguments: list[str], told: str
) -> None:
    """A mistake is explained before anything is started."""
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_rows_that_json_cannot_hold_are_named(run: Callable[..., Result]) -> None:
    """A column without a spelling in JSON ends with 1 and its name."""
    done = run(*ARROW, "--reducer", f"{MODULE}:waits", "--json")
    assert done.exit_code == 1
    assert "column 'wait' is of type duration[s]" in done.stderr


def test_a_bad_configuration_is_reported(run: Callable[..., Result], tmp_path: Path) -> None:
    """The file's mistakes are shown as ``headrace check`` shows them."""
    (tmp_path / "headrace.yaml").write_text("channels: {}", encoding="utf-8")
    done = run("--config", "headrace.yaml", "--input", "in.jsonl")
    assert done.exit_code == 2
    assert "headrace.yaml: 1 problem" in done.stderr
