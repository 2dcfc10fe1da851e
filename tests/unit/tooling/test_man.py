"""The manual pages, and their way into a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def man(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script."""
    monkeypatch.syspath_prepend(str(_ROOT / "scripts"))
    import man  # noqa: PLC0415 - where it is only now known

    return man


def test_there_is_a_page_for_each_command(man: ModuleType, tmp_path: Path) -> None:
    """The first one names all others, and those that are no commands any more go."""
    (tmp_path / "headrace-former.1").touch()
    man.write(tmp_path)
    names = sorted(file.stem for file in tmp_path.iterdir())
    assert {"headrace", "headrace-run", "headrace-offsets-reset", "headrace-tap"} < set(names)
    assert "headrace-former" not in names
    first = (tmp_path / "headrace.1").read_text(encoding="utf-8").replace("\\", "")
    assert set(re.findall(r"fB(headrace-[\w-]+)fR\(1\)", first)) == set(names) - {"headrace"}


def test_a_page_has_what_the_help_has(man: ModuleType) -> None:
    """Usage, description, options with defaults and variables, and exit codes."""
    page = man.pages()["headrace-offsets-reset.1"].replace("\\", "")
    assert '.SH "SYNOPSIS"\nfBheadrace offsets resetfR [fIOPTIONSfR]' in page
    assert "fB--tofR fIWHEREfR\nEarliest, latest," in page
    assert "offset:N or shift-by:N. Required.\n" in page
    assert "fB--configfR fIFILEfR, fB-cfR fIFILEfR\nThe YAML configuration file. Default: " in page
    assert "Environment: HEADRACE_CONFIG." in page
    assert '.SH "EXIT STATUS"\n0 done; 1 failed, and the message says what was changed;' in page
    assert "Default: 100." in man.pages()["headrace-state-list.1"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_takes_the_pages(man: ModuleType) -> None:
    """The pages have no accidental command of roff's."""
    command = ["groff", "-man", "-ww", "-Tutf8", "-z"]
    text = "".join(man.pages().values())
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("written", [True, False])
def test_a_wheel_has_the_pages_where_man_looks(tmp_path: Path, *, written: bool) -> None:
    """In share/man/man1, if they were written before; without them it is built all the same."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(_ROOT / name, tmp_path)
    (tmp_path / "headrace").mkdir()
    shutil.copy(_ROOT / "headrace" / "version.py", tmp_path / "headrace")
    if written:
        (tmp_path / "man").mkdir()
        (tmp_path / "man" / "headrace.1").write_text(".TH", encoding="utf-8")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", "out"]
    environment = {**os.environ, "HEADRACE_WHEEL_PLATFORM": "any"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (wheel,) = (tmp_path / "out").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        pages = [name for name in archive.namelist() if name.endswith("/share/man/man1/headrace.1")]
    assert len(pages) == written
