"""Commands that installed packages offer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from headrace.cli import app

if TYPE_CHECKING:
    from pathlib import Path

_CODE = """
import typer

app = typer.Typer()


@app.command()
def first(count: int = 1):
    \"\"\"Say it.\"\"\"
    print("first", count)


@app.command()
def second():
    print("second")


def alone(name: str):
    \"\"\"Greet a person.\"\"\"
    print("hello", name)
"""


def install(folder: Path, *, attribute: str, package: str = "") -> str:
    """Install a package with a command of a name of its own, and return the name."""
    name = f"tool{uuid4().hex[:8]}"
    (folder / f"{name}_code.py").write_text(_CODE)
    offer(folder, name, f"{name}_code:{attribute}", package or f"{name}-package")
    return name


def offer(folder: Path, name: str, path: str, package: str) -> None:
    """Write what the installed package says of itself."""
    info = folder / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[headrace.commands]\n{name} = {path}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_function_of_a_package_is_a_command(folder: Path) -> None:
    """It has arguments, help and exit codes as a command of Headrace has."""
    name = install(folder, attribute="alone")
    done = CliRunner().invoke(app, [name, "world"])
    assert (done.exit_code, done.output) == (0, "hello world\n")
    assert CliRunner().invoke(app, [name]).exit_code == 2
    assert "Greet a person." in CliRunner().invoke(app, [name, "--help"]).output


def test_an_app_of_a_package_is_a_group_of_commands(folder: Path) -> None:
    """A group's commands are one word further."""
    name = install(folder, attribute="app")
    done = CliRunner().invoke(app, [name, "first", "--count", "2"])
    assert (done.exit_code, done.output) == (0, "first 2\n")


def test_help_and_an_unknown_command_import_no_package(folder: Path) -> None:
    """The commands of packages are looked up by name only."""
    name = install(folder, attribute="alone")
    assert name not in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, [f"{name}x"]).exit_code == 2
    assert f"{name}_code" not in sys.modules
    assert (
        f"headrace.commands {name}: {name}_code:alone"
        in CliRunner().invoke(app, ["plugins"]).output
    )


def test_a_command_of_two_packages_is_refused(folder: Path) -> None:
    """Both are named."""
    name = install(folder, attribute="alone")
    offer(folder, name, "elsewhere:run", "other-package")
    done = CliRunner().invoke(app, [name, "world"])
    assert done.exit_code == 2
    assert "is offered by other-package and" in done.output


def test_a_command_of_headrace_is_never_that_of_a_package(folder: Path) -> None:
    """A package cannot take its place."""
    offer(folder, "version", "elsewhere:run", "other-package")
    assert CliRunner().invoke(app, ["version"]).exit_code == 0
