from __future__ import annotations

import threading

from headrace.clock import Deadline
from headrace.spark.turnstile import Turnstile

PATIENCE = 10.0


def test_it_closes_behind_those_inside() -> None:
    """Closing waits for them, and who comes meanwhile waits until it is open."""
    turnstile, inside, leave = Turnstile(), threading.Event(), threading.Event()
    order: list[str] = []

    def stay() -> None:
        with turnstile.turn():
            inside.set()
            assert leave.wait(PATIENCE)
            order.append("left")

    def follow() -> None:
        with turnstile.turn():
            order.append("followed")

    threads = [threading.Thread(target=stay), threading.Thread(target=follow)]
    threads[0].start()
    assert inside.wait(PATIENCE)
    assert not turnstile.close(Deadline.after(0.01))
    leave.set()
    assert turnstile.close(Deadline.after(PATIENCE))
    threads[1].start()
    order.append("closed")
    turnstile.open()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["left", "closed", "followed"]


def test_a_close_in_vain_leaves_it_open() -> None:
    """Others go through as before."""
    turnstile = Turnstile()
    with turnstile.turn():
        assert not turnstile.close(Deadline.after(0))
        with turnstile.turn():
            pass
    assert turnstile.close(Deadline.after(0))
