"""The messages of a real daemon to systemd."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.integration.daemon.rig import WAIT, Site, eventually
from tests.integration.daemon.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Coordinators of these tests turn every second, so that a process in order is heard that often.
SESSION = "3s"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A socket that daemons can be told of."""
    supervisor = Supervisor(tmp_path, watchdog=3.0)
    yield supervisor
    supervisor.close()


def test_systemd_hears_of_the_start_the_work_and_the_stop(
    site: Site, supervisor: Supervisor
) -> None:
    """READY comes when the channels have their partitions, WATCHDOG as long as they turn.

    STOPPING comes with the signal.
    """
    document = site.document()
    document["zookeeper"]["session_timeout"] = SESSION
    daemon = supervisor.watch(site.daemon(document)).start()
    assert "STATUS=main: running, 2 partitions" in supervisor.wait("READY=1")
    assert daemon.wait_event("controller_started")
    assert supervisor.messages()[0] == "STATUS=starting"
    eventually(lambda: supervisor.fed() >= 3)
    assert b"NOTIFY_SOCKET" not in _environment_of_children(daemon.running.pid)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert supervisor.wait("STOPPING=1") == "STOPPING=1\nSTATUS=stopping as asked"


def _environment_of_children(pid: int) -> bytes:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return b"".join(Path(f"/proc/{child}/environ").read_bytes() for child in children)


@pytest.mark.parametrize(
    "part",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("coordinator", "fetcher")),
        "main_loop",
    ],
)
def test_the_watchdog_starves_when_a_part_hangs(
    site: Site, supervisor: Supervisor, part: str
) -> None:
    """All other threads go on, and still systemd hears nothing and kills the process.

    It does so with SIGABRT, at which the log has the stacks of all threads.
    """
    document = site.document(f"freeze_the_{part}")
    document["zookeeper"]["session_timeout"] = SESSION
    if part == "coordinator":
        # it turns every 5 s and fails the channel after 15, so that the silence is in between
        document["zookeeper"]["session_timeout"] = "15s"
        supervisor.watchdog = 7.0
    daemon = supervisor.watch(site.daemon(document)).start()
    supervisor.wait("WATCHDOG=1")
    site.broker.produce(site.partition(0), b"first")
    eventually(lambda: site.seen() == ["first"])
    assert supervisor.wait_silence()
    assert daemon.running.poll() is None
    daemon.signal(signal.SIGABRT)
    assert daemon.wait() == -signal.SIGABRT
    said = daemon.text()
    assert "Fatal Python error: Aborted" in said
    assert "in <lambda>" in said


@pytest.mark.slow
def test_a_stop_that_takes_long_asks_for_time(site: Site, supervisor: Supervisor) -> None:
    """A batch is finished though it takes longer than systemd would wait; the exit code is 0."""
    site.broker.produce(site.partition(0), *[b"%d" % n for n in range(8)])
    document = site.document("dawdle")
    document["zookeeper"]["session_timeout"] = SESSION
    daemon = supervisor.watch(site.daemon(document)).start()
    eventually(site.seen)
    daemon.signal(signal.SIGTERM)
    supervisor.wait("EXTEND_TIMEOUT_USEC=")
    assert daemon.wait() == 0
    assert len(site.seen()) == 8


def test_a_daemon_goes_on_when_systemd_is_gone(site: Site, supervisor: Supervisor) -> None:
    """A notification that no one reads is logged, and the stop is in order."""
    daemon = supervisor.watch(site.daemon(site.document())).start()
    supervisor.wait("READY=1")
    supervisor.close()
    os.unlink(site.directory / "notify")  # noqa: PTH108
    assert wait_for(lambda: _has(daemon.text(), "systemd_notify_failed"), Deadline.after(WAIT))
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def _has(text: str, event: str) -> bool:
    return f'"{event}"' in text
