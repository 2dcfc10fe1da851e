"""Programs that tests run: waited for while they work, ended where they hang."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import pytest

from tests import programs
from tests.programs import run_program


def test_a_program_that_works_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than it may be silent, as on a busy machine."""
    monkeypatch.setattr(programs, "signs_of_work", lambda _: count().__next__)
    command = [sys.executable, "-c", "import time; time.sleep(2); print('done')"]
    done = run_program(command, silence=0.5)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_program_that_hangs_is_ended() -> None:
    """It is taken to hang after its silence."""
    with pytest.raises(subprocess.TimeoutExpired):
        run_program([sys.executable, "-c", "import time; time.sleep(600)"], silence=1.0)


def test_a_program_that_must_not_fail_is_an_error() -> None:
    """The error has the exit code; without ``check`` the result has it."""
    command = [sys.executable, "-c", "exit(3)"]
    assert run_program(command).returncode == 3
    with pytest.raises(subprocess.CalledProcessError, match="3"):
        run_program(command, check=True)
