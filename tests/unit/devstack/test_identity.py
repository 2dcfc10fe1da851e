from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.server import ProcessIdentity, ProcessState
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["linux", "darwin"])
def _source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when a process started as on Linux, and then again as elsewhere."""
    if request.param == "linux" and sys.platform != "linux":
        pytest.skip("no /proc here")
    monkeypatch.setattr(sys, "platform", request.param)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing for a while."""
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def _of(pid: int) -> ProcessIdentity:
    found = ProcessIdentity.of(pid)
    assert found is not None
    return found


@pytest.mark.usefixtures("_source")
def test_a_live_process_is_running() -> None:
    """This very process is found under its pid and runs."""
    assert _of(os.getpid()).state is ProcessState.RUNNING


@pytest.mark.usefixtures("_source")
def test_a_stopped_process_is_paused(sleeper: subprocess.Popen[bytes]) -> None:
    """SIGSTOP makes a process paused, SIGCONT makes it run again."""
    found = _of(sleeper.pid)
    assert found.send(signal.SIGSTOP)
    assert wait_for(lambda: found.state is ProcessState.PAUSED, Deadline.after(10))
    assert found.send(signal.SIGCONT)
    assert wait_for(lambda: found.state is ProcessState.RUNNING, Deadline.after(10))


@pytest.mark.usefixtures("_source")
def test_an_ended_process_is_gone_even_before_it_is_buried(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """A zombie counts as gone and takes no signal."""
    found = _of(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    assert wait_for(lambda: found.state is ProcessState.GONE, Deadline.after(10))
    assert not found.send(signal.SIGTERM)


def test_a_later_process_with_the_same_pid_gets_no_signal(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """A pid whose process started at another time is not signalled."""
    stale = ProcessIdentity(sleeper.pid, "another time")
    assert stale.state is ProcessState.GONE
    assert not stale.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_an_unused_pid_has_no_identity() -> None:
    """An unused pid has no identity."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert ProcessIdentity.of(process.pid) is None
