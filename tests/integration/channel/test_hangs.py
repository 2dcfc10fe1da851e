"""Threads that hang on real servers, so that the process has to be started again."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import Deadline
from headrace.core.errors import FatalError
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from tests.integration.channel.rig import CHANNEL, WAIT, Group, Notes, eventually
from tests.integration.seen import metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.records import Batch
    from tests.integration.seen import Log


#: By thread, the call in which it hangs.
_CALLS: dict[str, tuple[type, str]] = {
    "coordinator": (ZooKeeperRegistry, "heartbeat"),
    "committer": (KafkaOffsetStore, "commit"),
}


@pytest.mark.parametrize("thread", _CALLS)
def test_a_thread_that_hangs_ends_the_channel_and_costs_no_record(
    make_group: Callable[..., Group],
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    thread: str,
) -> None:
    """The process is told to end, and the next one goes on from what was committed."""
    monkeypatch.setattr("headrace.channel.commits.STALL_TIMEOUT", 2.0)
    group, hung = make_group(session_timeout=4), Event()
    group.produce(10)
    controller = group.controller(Notes())
    with monkeypatch.context() as patched:
        controller.start(Deadline.after(WAIT))
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        patched.setattr(*_CALLS[thread], lambda *_: hung.wait(WAIT) and {})
        group.produce(10, start=10)
        failure = controller.wait(WAIT)
        assert isinstance(failure, FatalError)
        assert f"its {thread} has done nothing" in str(failure)
        log.expect("thread_stalled", channel=CHANNEL, thread=thread)
        hung.set()
    controller.stop(Deadline.after(WAIT))
    notes = Notes()
    with group.running(notes):
        eventually(lambda: group.stored() == [StoredOffset(20, 2)])
    assert notes.records[group.partition()] in (list(range(10, 20)), [])


def test_callbacks_that_hang_again_and_again_end_the_process(
    make_group: Callable[..., Group], log: Log
) -> None:
    """Two threads are given up and replaced; the third one is too many."""
    group, release = make_group(3), Event()

    def hang(_: Batch) -> BatchResponse:
        release.wait(WAIT)
        return BatchResponse.advance()

    notes = Notes(hang)
    group.produce(10, 0, 1, 2)
    controller = group.controller(notes, batch_timeout="1s")
    controller.start(Deadline.after(WAIT))
    failure = controller.wait(WAIT)
    assert isinstance(failure, FatalError)
    assert "callbacks hung for longer than batch_timeout" in str(failure)
    assert metric(controller, "abandoned_workers_total") == len(log.of("worker_abandoned")) == 3
    release.set()
    controller.stop(Deadline.after(WAIT))
    assert group.offsets(0, 1, 2) == [0, 0, 0]
