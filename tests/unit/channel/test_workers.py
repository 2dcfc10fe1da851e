"""The pool of workers by itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.channel.scheduler import Scheduler
from headrace.channel.workers import Workers
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.waiting import wait_for
from headrace.telemetry.metrics import Metrics
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    import pytest


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
