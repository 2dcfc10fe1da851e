"""The verdict of systemd itself on the files in ``deploy/systemd``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app

SYSTEMD = Path(__file__).parents[3] / "deploy" / "systemd"

#: The first release whose tools say everything that is asked here.
NEEDED = 250


def _release() -> int:
    """Return the number of systemd's release, 0 where there is none."""
    if shutil.which("systemd-analyze") is None:
        return 0
    said = subprocess.run(
        ["systemd-analyze", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    return int(said.stdout.split()[1])


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _release() < NEEDED,
        reason=f"no systemd-analyze of systemd {NEEDED} or later: apt-get install systemd",
    ),
]

#: Ten times what systemd calls its "exposure level": 0 is nothing, 100 is all of root.
EXPOSURE = 15


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the command where there is one on this machine."""
    command = tmp_path / "bin" / "headrace"
    command.parent.mkdir()
    command.symlink_to(sys.executable)
    file = tmp_path / "headrace.service"
    text = (SYSTEMD / "headrace.service").read_text(encoding="utf-8")
    file.write_text(text.replace("/opt/headrace", str(tmp_path)), encoding="utf-8")
    return file


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_unit_is_in_order(unit: Path) -> None:
    """No unknown key, no wrong value, no command that is not there."""
    done = _analyze("verify", "--man=no", "--recursive-errors=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_of_a_new_project_is_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the project and the command are."""
    commands = tmp_path / "a b 50% %h"
    commands.mkdir()
    (commands / "headrace").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(commands / "python"))
    done = CliRunner().invoke(app, ["init", str(tmp_path / "e 100% f")])
    assert done.exit_code == 0, done.output
    unit = tmp_path / "e 100% f" / "headrace.service"
    verified = _analyze("verify", "--man=no", "--recursive-errors=no", unit)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_unit_that_is_not_in_order_is_found_out(unit: Path) -> None:
    """The check above checks: a misspelt key is an error."""
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert _analyze("verify", "--man=no", "--recursive-errors=no", unit).returncode != 0


def test_the_unit_exposes_little(unit: Path) -> None:
    """Systemd's own rating of what the process could do to the machine."""
    rating = _analyze(
        "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(unit)
    )
    assert rating.returncode == 0, rating.stdout


def test_the_user_is_declared() -> None:
    """systemd-sysusers would make the user that the unit names, with its home in the state."""
    done = subprocess.run(
        ["systemd-sysusers", "--dry-run", str(SYSTEMD / "headrace.sysusers.conf")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "headrace" in done.stdout + done.stderr
