"""The pool of workers by itself."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path
from queue import SimpleQueue
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, cast

import pytest

from headrace.channel import partition
from headrace.channel.runtime import ChannelRuntime
from headrace.channel.scheduler import Scheduler
from headrace.channel.settings import LiveSettings
from headrace.channel.skips import Skips
from headrace.channel.workers import Workers
from headrace.config import ChannelConfig
from headrace.coordinators.claims import Claim
from headrace.coordinators.lease import Lease
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import FatalError
from headrace.devstack.wait import wait_for
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_ports
from headrace.testing.channel import QUICK
from tests.unit.channel.in_memory import P0
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.events import PartitionEvent


def test_names_of_workers_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that come after others have ended have their names: these are labels of a metric."""
    monkeypatch.setattr("headrace.channel.workers.TAKE_TIMEOUT", 0.001)
    metrics = Metrics()
    workers = Workers(
        count=3,
        scheduler=Scheduler(SYSTEM_CLOCK),
        run_once=lambda _: None,
        busy=lambda: False,
        fail=lambda _: None,
        metrics=metrics,
        channel="main",
    )

    def settled(count: int) -> bool:
        names = [thread.name for thread in enumerate_threads()]
        started = sum(name.startswith("main-worker-") for name in names)
        # a name is free again once the thread that had it is over
        return len(metrics.thread_times()) == started == count

    workers.start()
    try:
        for count in (1, 3, 2, 3):
            workers.resize(count)
            assert wait_for(partial(settled, count), Deadline.after(PATIENCE))
        names = {time.name for time in metrics.thread_times()}
        assert names == {"worker-1", "worker-2", "worker-3"}
    finally:
        assert workers.stop(Deadline.after(PATIENCE)) == []


class Unknown:
    """An event of which no handler knows."""


@pytest.mark.parametrize("starting", [True, False])
def test_an_event_without_a_handler_fails_the_channel(
    broker: InMemoryBroker, *, starting: bool
) -> None:
    """It is not passed over in silence, in whatever state the partition is."""
    failures: SimpleQueue[BaseException] = SimpleQueue()
    runtime = runtime_of(broker, failures.put)
    runtime.manager.claimed(Claim(P0, 1, "member", 7, 1, Lease(60.0, SYSTEM_CLOCK, inf)))
    (owned,) = runtime.manager.all()
    if not starting:
        owned.begin(SYSTEM_CLOCK.monotonic())
    owned.post(cast("PartitionEvent", Unknown()))
    runtime.workers.start()
    try:
        error = failures.get(timeout=PATIENCE)
    finally:
        assert runtime.workers.stop(Deadline.after(PATIENCE)) == []
        runtime.close(Deadline.after(PATIENCE))
    assert type(error) is FatalError
    assert "Unknown" in str(error)


def runtime_of(broker: InMemoryBroker, fail: Callable[[BaseException], None]) -> ChannelRuntime:
    """Build the parts of a channel, of which no thread is started."""
    config, metrics = ChannelConfig.model_validate(QUICK), Metrics()
    return ChannelRuntime(
        "member",
        LiveSettings(config),
        Recorder(),
        in_memory_ports(config, broker, InMemoryZooKeeper(), "member"),
        skips=Skips(metrics, "member"),
        until=None,
        metrics=metrics,
        clock=SYSTEM_CLOCK,
        fail=fail,
    )


def test_a_partition_s_events_are_read_in_one_place() -> None:
    """One place decides on an event's consequences, in any state of the partition."""
    folder = Path(partition.__file__).parent
    found = [p.name for p in folder.glob("*.py") if ".events.popleft" in p.read_text("utf-8")]
    assert found == ["workers.py"]
