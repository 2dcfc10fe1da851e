from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.service import FEEDINGS, NotifySocket, Service
from headrace.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(eq=False)
class Part:
    """A thread that has taken so many turns."""

    last_beat: float = 0.0
    stall_timeout: float | None = 1.0


class Manager:
    """Hears what a service of ours says."""

    def __init__(self, watchdog: float | None = 4.0) -> None:
        self.clock = FakeClock()
        self.heard: list[str] = []
        self.service = Service(self.heard.append, watchdog, self.clock)

    def fed(self, *parts: Part) -> bool:
        """Let the main thread turn long after it did before; whether the watchdog was fed."""
        self.clock.advance(60)
        self.heard.clear()
        self.service.beat(parts)
        return self.heard == ["WATCHDOG=1"]


def test_the_watchdog_is_fed_when_every_part_has_come_on() -> None:
    """One of two that does not turn is enough for silence, until it turns again."""
    manager, one, other = Manager(), Part(), Part()
    assert manager.fed(one, other)
    one.last_beat += 1
    assert not manager.fed(one, other)
    assert not manager.fed(one, other)
    other.last_beat += 1
    assert manager.fed(one, other)
    assert not manager.fed(one, other)


def test_parts_that_do_not_run_are_not_waited_for() -> None:
    """Before its start and after its end a thread takes no turns, and none is missed."""
    manager, part, ended = Manager(), Part(), Part(stall_timeout=None)
    assert manager.fed(part, ended)
    part.last_beat += 1
    assert manager.fed(part, ended)
    part.stall_timeout = None
    assert manager.fed(part, ended)
    assert manager.fed()


def test_a_part_that_is_new_counts_as_turning() -> None:
    """A channel that was added has not had the time for two turns."""
    manager, old = Manager(), Part()
    assert manager.fed(old)
    old.last_beat += 1
    assert manager.fed(old, Part())


def test_the_watchdog_is_fed_a_few_times_in_its_interval_only() -> None:
    """The main loop turns more often than systemd wants to hear."""
    manager, part = Manager(), Part()
    assert manager.fed(part)
    manager.heard.clear()
    for turn in range(1, 2 * FEEDINGS + 1):
        manager.clock.advance(4.0 / FEEDINGS / 2)
        part.last_beat = turn
        manager.service.beat([part])
    assert manager.heard == ["WATCHDOG=1"] * FEEDINGS


def test_a_limit_above_the_watchdog_is_told_once() -> None:
    """Systemd would kill a process that is in order, so the log says what it needs."""
    manager, part = Manager(watchdog=4.0), Part(stall_timeout=36.0)
    with capture_logs() as logs:
        manager.fed(part)
        manager.fed(part)
    assert [(e["event"], e["needed"]) for e in logs] == [("watchdog_too_short", 36.0)]


def test_without_a_watchdog_nothing_is_fed() -> None:
    """Systemd did not ask for it."""
    assert not Manager(watchdog=None).fed(Part())


def test_messages_of_start_reload_and_status_are_sd_notify_s() -> None:
    """A status is one line and is sent when it changes."""
    manager = Manager()
    manager.service.status("starting")
    manager.service.ready("main:\n running")
    manager.service.status("main:\n running")
    with manager.service.reloading(lambda: "done"):
        pass
    reloading = manager.heard.pop(2).split("\n")
    assert manager.heard == [
        "STATUS=starting",
        "READY=1\nSTATUS=main: running",
        "READY=1\nSTATUS=done",
    ]
    assert reloading[0] == "RELOADING=1"
    assert reloading[1].removeprefix("MONOTONIC_USEC=").isdigit()


def test_a_reload_before_the_first_ready_says_nothing() -> None:
    """Not at its end either, where the start was done meanwhile: READY is for the start to say."""
    manager = Manager()
    with manager.service.reloading(lambda: "reloaded"):
        pass
    assert manager.heard == []
    with manager.service.reloading(lambda: "reloaded"):
        manager.service.ready("started")
    assert manager.heard == ["READY=1\nSTATUS=started"]


def test_a_stop_asks_for_time_while_it_comes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks once for each time that all parts turned, and says first that it stops."""
    monkeypatch.setattr("headrace.service.STOP_INTERVAL", 0.001)
    manager, part = Manager(), Part()

    def asked(times: int) -> bool:
        extensions = [text for text in manager.heard if text.startswith("EXTEND_TIMEOUT_USEC=")]
        return len(extensions) == times

    with manager.service.stopping("stopping", lambda: [part], Deadline.after(60)):
        assert wait_for(lambda: asked(1), Deadline.after(10))
        part.last_beat += 1
        assert wait_for(lambda: asked(2), Deadline.after(10))
    assert manager.heard[0] == "STOPPING=1\nSTATUS=stopping"
    assert asked(2)


def test_a_stop_asks_for_no_time_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends by then, whatever hangs, and what does not end is systemd's to kill."""
    monkeypatch.setattr("headrace.service.STOP_INTERVAL", 0.0)
    manager = Manager()
    with manager.service.stopping("stopping", list, Deadline.after(0)):
        pass
    assert manager.heard == ["STOPPING=1\nSTATUS=stopping"]


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_arrive_at_either_kind_of_socket(tmp_path: Path, *, abstract: bool) -> None:
    """Abstract addresses begin with @, others are paths."""
    name = f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}" if abstract else name)
        environment = {
            "NOTIFY_SOCKET": f"@{name}" if abstract else name,
            "WATCHDOG_USEC": "4000000",
            "WATCHDOG_PID": str(os.getpid()),
            "HOME": "/",
        }
        service = Service.from_environment(environment)
        assert environment == {"HOME": "/"}
        service.ready("up")
        assert receiver.recv(1000) == b"READY=1\nSTATUS=up"


def test_a_watchdog_for_another_process_is_not_fed(tmp_path: Path) -> None:
    """The variables of a parent may have been inherited by mistake."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"{tmp_path}/notify")
        receiver.setblocking(False)
        service = Service.from_environment(
            {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
        )
        service.beat([])
        with pytest.raises(BlockingIOError):
            receiver.recv(1000)


def test_a_socket_that_is_gone_costs_a_line_in_the_log(tmp_path: Path) -> None:
    """The process goes on, whatever becomes of systemd."""
    with capture_logs() as logs:
        NotifySocket(f"{tmp_path}/none").send("READY=1")
    assert [(entry["event"], entry["message"]) for entry in logs] == [
        ("systemd_notify_failed", "READY=1")
    ]


def test_calls_without_systemd_are_harmless() -> None:
    """The thread of the stop is not started."""
    service = Service.from_environment({})
    service.ready("up")
    with service.stopping("stopping", list, Deadline.after(1)):
        service.status("stopping")
