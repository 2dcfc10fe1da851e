"""The demo of topologies as a process: verified, and gone without a trace however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).parents[2]

#: Seconds for three starts of a daemon and one of Kafka Streams on a busy machine.
_PATIENCE = 600


def _start(directory: Path, *options: str) -> subprocess.Popen[str]:
    """Start a small demo, whose temporary files are in a folder."""
    directory.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "examples.streams", *options],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _left(directory: Path) -> Sequence[psutil.Process]:
    """Return the processes whose commands name the folder: servers and daemons."""
    processes = psutil.process_iter(["cmdline"])
    return [each for each in processes if str(directory) in " ".join(each.info["cmdline"] or [])]


def _nothing_left(directory: Path) -> bool:
    return bool(wait_for(lambda: not _left(directory), Deadline.after(30)))


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE + 60)
@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_killed_daemon_costs_a_topology_nothing(tmp_path: Path, engine: str) -> None:
    """Both tables are what pandas makes of the records, and Kafka Streams where it can run."""
    directory = tmp_path / "work"
    with _start(directory, "--rows", "20000", "--over", "12", "--engine", engine) as demo:
        said, _ = demo.communicate(timeout=_PATIENCE)
    assert demo.returncode == 0, said
    *before, last = said.splitlines()
    # of the 20,000 earliest flights
    assert last == "verified: 1217 windows, 1214 joined, 0 lost, 0 twice"
    beside = "Kafka Streams: 1217 windows, 1214 joined; of these the tables have 0 lost, 0 twice"
    assert beside in before or any("not compared with Kafka Streams" in each for each in before)
    found = re.search(r"kill point: daemon-2, .* by SIGKILL .* in the table \(([\d.]+)%\)", said)
    assert found is not None
    assert 40 <= float(found[1]) <= 61
    assert _nothing_left(directory)
    assert list(directory.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_demo_of_topologies(tmp_path: Path, number: signal.Signals) -> None:
    """A demo ended while its daemons run leaves no process, and after SIGTERM no files either."""
    directory = tmp_path / "work"
    with _start(directory, "--rows", "5000", "--over", "60") as demo:
        try:
            ready = wait_for(
                lambda: any("run" in each.info["cmdline"] for each in _left(directory)),
                Deadline.after(_PATIENCE / 2),
            )
        finally:
            demo.send_signal(number)
        demo.communicate(timeout=60)
    assert ready
    assert demo.returncode in {-number, 128 + number}
    assert _nothing_left(directory)
    assert number == signal.SIGKILL or list(directory.iterdir()) == []
