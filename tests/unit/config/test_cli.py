from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
import typer
import yaml
from typer.testing import CliRunner

from headrace.cli import schema
from headrace.ops.doctor.cli import check
from tests.programs import run_program
from tests.unit.config.support import CHANNELS

if TYPE_CHECKING:
    from pathlib import Path

APP = typer.Typer()
APP.command()(check)
APP.command()(schema)

PROMISE = (
    "at-least-once: the noop sink keeps no offsets, so rows may be written again after a crash"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that can be used."""
    path = tmp_path / "headrace.yaml"
    path.write_text(f"zookeeper: {{digest: {{username: u, password: hunter2}}}}{CHANNELS}")
    return path


def test_check_prints_what_each_channel_guarantees(file: Path) -> None:
    """A good file exits with 0 and gives one line for each channel."""
    result = CliRunner().invoke(APP, ["check", "-c", str(file)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"flights: {PROMISE}\n"


_CONTINUED = """
channels:
  orders:
    topics: [orders]
    group: status
    processor: {type: keyed, reducer: "orders:status", key: value.customer.id}
    sink: {type: kafka, topic: order-status}
  late:
    topics: [order-status]
    group: late
    processor: {type: spark, reducer: "reducers:reduce"}
    rejects: {failing: dead_letter, topic: late.dead}
    sink: noop
  table:
    topics: ['^status\\..*\\.state$', late.dead, elsewhere]
    group: table
    processor: {type: simple, deliver: record}
    sink: "functions:keep"
"""


def test_check_says_of_which_key_a_state_is(tmp_path: Path) -> None:
    """That of the file, also where the records come by it; and what becomes of it with another."""
    path = tmp_path / "headrace.yaml"
    path.write_text(_CONTINUED)
    result = CliRunner().invoke(APP, ["check", "-c", str(path)])
    (orders,) = [line for line in result.stdout.splitlines() if line.startswith("orders: ")]
    assert "its state in status.orders.by-key.state is of key: value" in orders
    assert "another key takes another group" in orders


def test_check_says_which_channels_a_channel_goes_on_from(tmp_path: Path) -> None:
    """Channels that write a topic of the channel are named: re-keying, outputs, letters, states."""
    path = tmp_path / "headrace.yaml"
    path.write_text(_CONTINUED)
    result = CliRunner().invoke(APP, ["check", "-c", str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    found = {
        name: sentence.split("; continues ")[1:]
        for name, _, sentence in (line.partition(": ") for line in result.stdout.splitlines())
    }
    assert found == {
        "orders.rekey": [],
        "orders": ["orders.rekey, which writes status.orders.by-key"],
        "late": ["orders, which writes order-status"],
        "table": [
            "orders, which writes status.orders.by-key.state",
            "late, which writes late.dead",
        ],
    }


def test_check_prints_a_table_on_a_terminal(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the guarantees are a table with the channel, the delivery and the reason."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    check(file)
    printed = capsys.readouterr().out
    for word in ("channel", "delivery", "flights", "at-least-once", "the noop sink"):
        assert word in printed


def test_check_shows_the_configuration_without_secrets(file: Path) -> None:
    """--show prints YAML with the guarantees as comments, defaults filled in, secrets masked."""
    result = CliRunner().invoke(APP, ["check", "--config", str(file), "--show"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# flights: {PROMISE}\n")
    shown = yaml.safe_load(result.stdout)
    assert shown["zookeeper"]["digest"] == {"username": "u", "password": "***"}
    assert shown["channels"]["flights"]["workers"] == 2
    assert "hunter2" not in result.output


def test_check_prints_problems_on_standard_error(tmp_path: Path) -> None:
    """A bad file exits with 2, prints nothing on standard output, and names every problem."""
    path = tmp_path / "bad.yaml"
    path.write_text(f"metrics: {{port: x}}\nkafak: 1{CHANNELS}")
    result = CliRunner().invoke(APP, ["check", "-c", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"{path}: 2 problems",
        "  metrics.port (line 1): 'x' is not a whole number from 0 to 65535 or null",
        "  kafak (line 2): is not a known key; did you mean kafka?",
    ]


def test_check_names_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there exits with 2 as well."""
    path = tmp_path / "none.yaml"
    result = CliRunner().invoke(APP, ["check", "-c", str(path)])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{path}: 1 problem",
        f"  {path} cannot be read: No such file or directory",
    ]


def test_schema_prints_json() -> None:
    """The schema command prints the JSON schema and nothing else."""
    result = CliRunner().invoke(APP, ["schema"])
    assert result.exit_code == 0
    assert "channels" in json.loads(result.stdout)["properties"]


def test_schema_is_the_same_in_each_process() -> None:
    """Sets have another order in each: a schema that is kept in a repository would change."""

    def printed(seed: str) -> str:
        command = [sys.executable, "-m", "headrace", "schema"]
        variables = {**os.environ, "PYTHONHASHSEED": seed}
        return run_program(command, env=variables, check=True).stdout

    assert len({printed(seed) for seed in "12"}) == 1
