from __future__ import annotations

import threading

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.extensions.spark.runtime import JobGate

PATIENCE = 10.0


def test_it_closes_behind_those_inside() -> None:
    """Closing waits for them, and who comes meanwhile waits until it is open."""
    job_gate, inside, leave = JobGate(), threading.Event(), threading.Event()
    order: list[str] = []

    def stay() -> None:
        with job_gate.admitted():
            inside.set()
            assert leave.wait(PATIENCE)
            order.append("left")

    def follow() -> None:
        with job_gate.admitted():
            order.append("followed")

    threads = [threading.Thread(target=stay), threading.Thread(target=follow)]
    threads[0].start()
    assert inside.wait(PATIENCE)
    assert not job_gate.close(Deadline.after(0.01))
    leave.set()
    assert job_gate.close(Deadline.after(PATIENCE))
    threads[1].start()
    order.append("closed")
    job_gate.open()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["left", "closed", "followed"]


def test_a_retired_gate_releases_its_waiters() -> None:
    """Threads that wait to enter or to close go on, and the gate cannot be closed any more."""
    job_gate, in_vain = JobGate(), threading.Event()

    def close() -> None:
        if not job_gate.close(Deadline.after(PATIENCE)):
            in_vain.set()

    def follow() -> None:
        with job_gate.admitted():
            pass

    with job_gate.admitted():
        threads = [threading.Thread(target=close), threading.Thread(target=follow)]
        threads[0].start()
        assert wait_for(lambda: job_gate.is_closed, Deadline.after(PATIENCE))
        threads[1].start()
        job_gate.retire()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert in_vain.is_set()
    assert not job_gate.close(Deadline.after(PATIENCE))


def test_a_close_in_vain_leaves_it_open() -> None:
    """Others go through as before."""
    job_gate = JobGate()
    with job_gate.admitted():
        assert not job_gate.close(Deadline.after(0))
        with job_gate.admitted():
            pass
    assert job_gate.close(Deadline.after(0))
