"""The pool of workers by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, cast

import pytest

from headrace.channel import partition
from headrace.channel.scheduler import Scheduler
from headrace.channel.workers import Workers
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import FatalError
from headrace.devstack.wait import wait_for
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.events import PartitionEvent
    from headrace.coordinators.claims import Claim


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
        return len(metrics.thread_times()) == len(workers._numbers) == count

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
def test_an_event_that_nobody_handles_fails_the_channel(
    broker: InMemoryBroker, *, starting: bool
) -> None:
    """It is not passed over in silence, in whatever state the partition is."""
    failures: list[BaseException] = []
    recorder, failed = Recorder(), Event()

    def note(_: InboundKafkaChannel, error: BaseException) -> None:
        failures.append(error)
        failed.set()

    channel = in_memory_channel(recorder, broker, on_failure=note)
    claimed = channel._runtime.manager.claimed

    def claim(claim: Claim) -> None:
        claimed(claim)
        (owned,) = [each for each in channel._runtime.manager.all() if each.life.claim is claim]
        owned.post(cast("PartitionEvent", Unknown()))

    if starting:
        channel._runtime.manager.claimed = claim  # type: ignore[method-assign]
    with running(channel):
        if not starting:
            recorder.wait(lambda: "assigned" in recorder.names())
            channel._runtime.manager.all()[0].post(cast("PartitionEvent", Unknown()))
            channel._runtime.manager.touch_all()
        assert failed.wait(PATIENCE)
    assert [type(error) for error in failures] == [FatalError]
    assert "Unknown" in str(failures[0])


def test_a_partition_s_events_are_read_in_one_place() -> None:
    """What has to follow from an event is decided once, whatever state the partition is in."""
    folder = Path(partition.__file__).parent
    found = [p.name for p in folder.glob("*.py") if ".events.popleft" in p.read_text("utf-8")]
    assert found == ["workers.py"]
