"""Looking at the threads of the process."""

from __future__ import annotations

import gc
import weakref
from threading import Event, Thread, get_ident
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.stacks import stack_of, thread_stacks
from headrace.daemon import Diagnostics
from headrace.telemetry.metrics import PartitionSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIVITY = PartitionSnapshot(
    channel="main",
    topic="events",
    partition=3,
    epoch=2,
    state="running",
    position=10,
    batch_offset=9,
    batch_end=10,
    committed=5,
    high_watermark=None,
    held_bytes=0,
    held_back_seconds=None,
    buffered_records=0,
    outstanding_batches=1,
    attempts=0,
    suspect_records=0,
    dead_letters=0,
    callback_seconds=1.5,
    calls=("a.py:1 wait",),
    last_error=None,
)


def test_a_thread_is_shown_where_it_is() -> None:
    """The stack is found by the thread's name, innermost call last; an ended thread has none."""
    inside, done = Event(), Event()

    def linger() -> None:
        inside.set()
        done.wait(10)

    thread = Thread(target=linger, name="lingering")
    thread.start()
    assert inside.wait(10)
    calls = thread_stacks()["lingering"]
    assert any(call.endswith(" linger") for call in calls)
    assert any(call.endswith(" linger") for call in stack_of(thread.ident))
    done.set()
    thread.join()
    assert "lingering" not in thread_stacks()
    assert stack_of(thread.ident) == []
    assert stack_of(None) == []


def test_threads_of_one_name_are_told_apart() -> None:
    """None of them stands for the other."""
    done = Event()
    threads = [Thread(target=done.wait, args=[10], name="twin") for _ in range(2)]
    for thread in threads:
        thread.start()
    twins = [name for name in thread_stacks() if name.partition(" ")[0] == "twin"]
    assert len(twins) == 2
    done.set()
    for thread in threads:
        thread.join()


def test_a_dump_has_an_event_for_each_thread_and_partition() -> None:
    """The log has both by their names."""
    with capture_logs() as logs:
        Diagnostics(lambda: [ACTIVITY]).dump()
    names = [entry["event"] for entry in logs]
    assert names[0] == "stack_dump"
    assert names.count("thread_stack") == logs[0]["threads"]
    assert "MainThread" in {entry.get("thread") for entry in logs}
    assert logs[-1]["event"] == "partition_status"
    assert (logs[-1]["partition"], logs[-1]["calls"]) == (3, ("a.py:1 wait",))


@pytest.mark.parametrize("look", [thread_stacks, lambda: stack_of(get_ident())])
def test_a_look_at_stacks_keeps_no_objects_of_threads(look: Callable[[], object]) -> None:
    """No frame and no variable is left for the collector."""

    class Records:
        """Stands for what a thread works on."""

    def work() -> weakref.ref[Records]:
        records = Records()
        look()
        return weakref.ref(records)

    gc.disable()
    try:
        assert work()() is None
    finally:
        gc.enable()
