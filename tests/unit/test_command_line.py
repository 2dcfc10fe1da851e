"""Behaviour common to all commands."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import COMMANDS as LISTED
from headrace.cli import app
from headrace.core.options import Panel
from headrace.version import VERSION
from tests.programs import run_program

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.commands import Command


def _commands(group: Any, name: str = "") -> dict[str, Any]:
    """Return the commands by their names, those of groups included."""
    found: dict[str, Any] = {}
    for each, command in group.commands.items():
        inner = hasattr(command, "commands")
        found |= _commands(command, f"{each} ") if inner else {f"{name}{each}": command}
    return found


COMMANDS = _commands(typer.main.get_command(app))
CONFIGURED = {
    name: option
    for name, command in COMMANDS.items()
    for option in command.params
    if "-c" in option.opts
}


def test_the_version_is_an_option_too() -> None:
    """The option works without a command, as for other programs."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{VERSION}\n")


def test_help_lists_commands_by_what_they_are_for() -> None:
    """Each is in one panel, of which there are seven; within a panel they go by the alphabet."""
    group: Any = typer.main.get_command(app)
    shown = CliRunner().invoke(app, ["-h"]).output
    assert "\nCommands:" not in shown
    panels = [shown.partition(f"\n{panel.value}:\n")[2].partition("\n\n")[0] for panel in Panel]
    listed = [re.findall(r"^  ([\w-]+) ", panel, re.MULTILINE) for panel in panels]
    assert all(names and names == sorted(names) for names in listed)
    assert sorted(name for names in listed for name in names) == sorted(group.commands)
    assert [name for name in listed[2] if name == "run"] == ["run"]


@pytest.mark.parametrize("command", LISTED, ids=lambda command: command.name)
def test_summary_is_the_first_sentence_of_the_command_s_help(command: Command) -> None:
    """The summary that --help prints without importing a command is the command's own."""
    assert command.load().get_short_help_str(1000) == command.summary


def test_help_imports_no_command() -> None:
    """The rooms of commands are imported when one of theirs runs."""
    seen = (
        "import sys; from typer.testing import CliRunner; from headrace.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print([name for name in sys.modules if name.startswith(('headrace.ops.', "
        "'headrace.apps.', 'headrace.devstack.'))])"
    )
    done = run_program([sys.executable, "-c", seen], check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_s_arguments_read_as_they_are_typed(name: str) -> None:
    """In capitals, in brackets where they may be left out; -h shows the same as --help."""
    shown = CliRunner().invoke(app, [*name.split(), "-h"]).output
    assert shown == CliRunner().invoke(app, [*name.split(), "--help"]).output
    usage = " ".join(shown.partition("\n\n")[0].split())
    assert not set("{}<") & set(usage)
    assert "[[" not in usage
    for each in COMMANDS[name].params:
        if each.param_type_name == "argument":
            assert each.metavar, each.name
            assert (each.metavar if each.required else f"[{each.metavar}]") in usage


@pytest.mark.parametrize("group", [[], ["local"], ["offsets"], ["connector"]])
def test_help_says_all_of_a_command_s_summary(group: list[str]) -> None:
    """A summary is not cut for a narrow terminal."""
    inner: Any = typer.main.get_command(app)
    for name in group:
        inner = inner.commands[name]
    shown = " ".join(CliRunner().invoke(app, [*group, "--help"]).output.split())
    for name, command in inner.commands.items():
        summary = " ".join(command.help.split("\n\n")[0].split()).split(". ")[0]
        assert f"{name} {summary}".removesuffix(".") in shown


@pytest.mark.parametrize("name", CONFIGURED)
def test_each_command_that_takes_a_configuration_takes_the_variable(name: str) -> None:
    """HEADRACE_CONFIG stands for -c everywhere, so that it can be set once."""
    assert CONFIGURED[name].envvar == "HEADRACE_CONFIG"
    assert CONFIGURED[name].metavar == "FILE"


def test_a_file_of_the_usual_name_need_not_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands take headrace.yaml where none is named; where there is none, they say so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    for command in ("run", "check", "offsets show", "health", "state verify"):
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 2
        assert "there is no headrace.yaml in this folder" in result.output
    (tmp_path / "headrace.yaml").write_text("chanels: {}\n")
    for command in (
        "run",
        "check",
        "offsets show",
        "status",
        "state list --changelog",
        "reduce --input x",
    ):
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 2
        assert "chanels (line 1): is not a known key" in result.output


def test_the_commands_with_a_configuration_are_these() -> None:
    """The list above is no empty one."""
    assert {"run", "check", "status", "health", "group", "doctor", "reduce", "offsets show"} <= {
        *CONFIGURED
    }


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("headrace do", ["doctor"]),
        ("headrace offsets re", ["reset"]),
        ("headrace group --wa", ["--watch"]),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, found: list[str]) -> None:
    """The program answers the shell, by the variables that the installed function sets."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    result = CliRunner().invoke(
        app, prog_name="headrace", env={"_HEADRACE_COMPLETE": "complete_bash", **words}
    )
    assert result.output.split() == found
