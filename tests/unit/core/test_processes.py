"""Other processes, and what they may import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.core.processes import python_command

if TYPE_CHECKING:
    import pytest

PACKAGE = Path(headrace.__file__).parent


def test_a_python_of_ours_imports_nothing_from_where_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules in its folder and environment are ignored; it has our modules and its arguments."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = python_command("import json, headrace; print(json.dumps(sys.argv[1:]))", "a b", "é")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, '["a b", "\\u00e9"]\n'), done.stderr


def test_a_relative_folder_of_the_path_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that starts elsewhere looks where this process does."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "of_a_user.py").write_text("NAME = 'found'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["modules", *sys.path])
    command = python_command("import of_a_user; print(of_a_user.NAME)")
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


def test_each_python_that_is_started_is_isolated() -> None:
    """The interpreter is started by the command, or isolated; Spark starts its own."""
    starters = {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if "[sys.executable" in path.read_text(encoding="utf-8")
    }
    assert set(starters) == {"core/processes.py", "devstack/server.py"}
    assert all('[sys.executable, "-I"' in text for text in starters.values())
