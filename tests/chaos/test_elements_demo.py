"""The demo of elements as a process: verified, and gone without a trace however it ends."""

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

#: Seconds for two starts of a daemon on a busy machine, several times over.
_PATIENCE = 300


def _start(directory: Path, *options: str) -> subprocess.Popen[str]:
    """Start a small demo, without Spark, whose temporary files are in a folder."""
    directory.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "examples.elements", "--engine", "arrow", *options],
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
def test_a_killed_daemon_goes_on_with_its_elements(tmp_path: Path) -> None:
    """Each report is there once, the last ones have every flight, and no file is left."""
    directory = tmp_path / "work"
    with _start(directory, "--rows", "20000", "--over", "8") as demo:
        said, _ = demo.communicate(timeout=_PATIENCE)
    assert demo.returncode == 0, said
    last = said.splitlines()[-1]
    assert re.fullmatch(
        r"verified: \d+ destinations, 20000 events, 0 lost, 0 counted twice, \d+ reports each "
        r"1000 events, 0 missing, 0 twice",
        last,
    )
    found = re.search(r"kill point: daemon-1, by SIGKILL .* in reports \(([\d.]+)%\)", said)
    assert found is not None
    assert 25 <= float(found[1]) <= 61
    assert _nothing_left(directory)
    assert list(directory.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_demo_of_elements(tmp_path: Path, number: signal.Signals) -> None:
    """A demo ended while its daemon runs leaves no process, and after SIGTERM no files either."""
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
