from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]

#: Seconds for three starts of Spark on a busy machine, several times over.
_PATIENCE = 500


def _start(directory: Path, cwd: Path) -> subprocess.Popen[str]:
    """Start a small demo in a folder that nobody may write to."""
    cwd.mkdir()
    cwd.chmod(0o555)
    options = ["--rows", "20000", "--over", "10", "--dir", str(directory)]
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *options],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _left(directory: Path) -> list[psutil.Process]:
    """Return the processes whose commands name the directory: the demo, servers and daemons."""
    processes = psutil.process_iter(["cmdline"])
    commands = {process: " ".join(process.info["cmdline"] or []) for process in processes}
    return [process for process, command in commands.items() if str(directory) in command]


def _jvms(directory: Path) -> list[psutil.Process]:
    """Return the JVMs of the daemons, whose commands do not say what they are for."""
    found = []
    for process in _left(directory):
        with suppress(psutil.NoSuchProcess):
            if "run" in process.cmdline():
                found += [each for each in process.children() if each.name() == "java"]
    return found


def _nothing_left(directory: Path) -> bool:
    return bool(wait_for(lambda: not _left(directory), Deadline.after(30)))


@pytest.mark.timeout(_PATIENCE + 60)
def test_a_killed_daemon_costs_nothing(tmp_path: Path) -> None:
    """The demo ends verified: both daemons committed before the kill and after the restart."""
    directory, cwd = tmp_path / "work folder", tmp_path / "cwd"
    with _start(directory, cwd) as demo:
        said, _ = demo.communicate(timeout=_PATIENCE)
    assert demo.returncode == 0, said
    assert said.splitlines()[-1] == "verified: 20000 events, 0 lost, 0 duplicated"
    share = re.search(r"kill point: daemon-2, .* by SIGKILL with \d+ rows in \(([\d.]+)%\)", said)
    assert share is not None
    assert 30 <= float(share[1]) <= 70
    assert re.search(r"take-over: \d+\.\d s from the kill", said)
    after = re.search(r"commits after daemon-2 .*: daemon-1 (\d+), daemon-2 (\d+)", said)
    assert after is not None
    assert min(map(int, after.groups())) > 0
    assert _nothing_left(directory)
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
@pytest.mark.timeout(240)
def test_nothing_outlives_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    """Servers, daemons and JVMs end as well when a signal ends the demo while daemons run."""
    directory = tmp_path / "work"

    jvms: list[psutil.Process] = []

    def daemons_and_their_jvms() -> bool:
        jvms[:] = _jvms(directory)
        return len(jvms) >= 2

    with _start(directory, tmp_path / "cwd") as demo:
        try:
            assert wait_for(daemons_and_their_jvms, Deadline.after(150))
        finally:
            demo.send_signal(number)
        demo.communicate(timeout=60)
    assert demo.returncode in {-number, 128 + number}
    assert _nothing_left(directory)
    assert psutil.wait_procs(jvms, timeout=30)[1] == []
