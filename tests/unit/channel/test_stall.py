"""A channel with a thread that makes no progress."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from headrace.channel import commits
from headrace.channel.supervision import ThreadWatchdog
from headrace.core.clock import Deadline
from headrace.core.errors import FatalError
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel
from headrace.testing.broker import InMemoryOffsets
from headrace.testing.zookeeper import InMemoryRegistry
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    import pytest


class Turner:
    """Takes a turn whenever it is looked at, a number of times."""

    def __init__(self, turns: int, limit: float) -> None:
        self.left = turns
        self.stall_timeout = limit
        self.looks = 0

    @property
    def last_beat(self) -> float:
        """Rises as long as turns are left."""
        self.looks += 1
        self.left = max(0, self.left - 1)
        return float(self.left)


def test_a_coordinator_that_hangs_fails_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is to be restarted, because its session is kept alive by another thread."""
    hung, failed = Event(), Event()
    monkeypatch.setattr(InMemoryRegistry, "heartbeat", lambda _: hung.wait(PATIENCE))
    broker = InMemoryBroker()
    broker.create_topic("events")
    channel = in_memory_channel(
        Recorder(),
        broker,
        zookeeper=InMemoryZooKeeper(session_timeout=0.2),
        on_failure=lambda *_: failed.set(),
    )
    channel.start(Deadline.after(PATIENCE))
    assert failed.wait(PATIENCE)
    hung.set()
    assert isinstance(channel.failure, FatalError)
    assert "coordinator has done nothing for 0.2 s" in str(channel.failure)
    channel.stop(Deadline.after(PATIENCE))


def test_a_committer_that_hangs_fails_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that ignores deadlines would stop all commits without an error."""
    monkeypatch.setattr(commits, "STALL_TIMEOUT", 0.2)
    hung, failed = Event(), Event()
    broker = InMemoryBroker()
    monkeypatch.setattr(InMemoryOffsets, "commit", lambda *_: hung.wait(PATIENCE) and {})
    broker.create_topic("events")
    channel = in_memory_channel(Recorder(), broker, on_failure=lambda *_: failed.set())
    channel.start(Deadline.after(PATIENCE))
    assert failed.wait(PATIENCE)
    hung.set()
    assert isinstance(channel.failure, FatalError)
    assert "committer has done nothing for 0.2 s" in str(channel.failure)
    channel.stop(Deadline.after(PATIENCE))


def test_progress_puts_the_time_back() -> None:
    """The limit counts from the last turn, and the failure comes once."""
    failures: list[BaseException] = []
    failed = Event()
    turner = Turner(turns=12, limit=0.04)

    def fail(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    guard = ThreadWatchdog("turner", turner, fail=fail, channel="main")
    guard.start()
    assert failed.wait(PATIENCE)
    assert guard.stop(Deadline.after(PATIENCE))
    assert turner.looks >= 12 + 8
    assert len(failures) == 1
