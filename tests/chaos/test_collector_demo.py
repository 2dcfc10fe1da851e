from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: Seconds for three starts of Spark on a busy machine, several times over.
_PATIENCE = 500


def _start(directory: Path, engine: str) -> subprocess.Popen[str]:
    """Start a small demo in a folder."""
    options = ["--days", "10", "--over", "10", "--engine", engine, "--dir", str(directory)]
    return subprocess.Popen(
        [sys.executable, "-m", "examples.collector", *options],
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _left(directory: Path) -> list[str]:
    """Return the commands of processes that name the folder: the demo, servers and daemons."""
    processes = psutil.process_iter(["cmdline"])
    commands = [" ".join(process.info["cmdline"] or []) for process in processes]
    return [command for command in commands if str(directory) in command]


def _nothing_left(directory: Path) -> bool:
    return bool(wait_for(lambda: not _left(directory), Deadline.after(30)))


@pytest.mark.parametrize("engine", ["spark", "arrow"])
@pytest.mark.timeout(_PATIENCE + 60)
def test_a_killed_collector_costs_nothing(tmp_path: Path, engine: str) -> None:
    """The demo ends verified: each group has one outcome, those that lost an event among them."""
    directory = tmp_path / "work folder"
    with _start(directory, engine) as demo:
        said, _ = demo.communicate(timeout=_PATIENCE)
    assert demo.returncode == 0, said
    counts = re.fullmatch(
        r"verified: (\d+) groups, (\d+) outcomes, 0 twice, 0 missing", said.splitlines()[-1]
    )
    assert counts is not None, said
    assert counts[1] == counts[2]
    lost = re.search(r"groups \(\d+ succeeded, \d+ failed, (\d+) timed out\)", said)
    assert lost is not None
    assert int(lost[1]) > 2
    assert re.search(r"kill point: daemon-2, holding partitions [\d ]+, by SIGKILL", said)
    assert re.search(r"take-over: \d+\.\d s from the kill", said)
    commits = re.search(r"run at the end: daemon-1 (\d+), daemon-2 (\d+)", said)
    assert commits is not None
    assert min(map(int, commits.groups())) > 0
    assert _nothing_left(directory)


@pytest.mark.timeout(240)
def test_nothing_outlives_the_demo(tmp_path: Path) -> None:
    """When the demo is killed while its daemons run, servers and daemons end too."""
    directory = tmp_path / "work"

    def daemons_run() -> bool:
        return sum(" run " in command for command in _left(directory)) >= 2

    with _start(directory, "arrow") as demo:
        try:
            assert wait_for(daemons_run, Deadline.after(150))
        finally:
            demo.send_signal(signal.SIGKILL)
        demo.communicate(timeout=60)
    assert _nothing_left(directory)
