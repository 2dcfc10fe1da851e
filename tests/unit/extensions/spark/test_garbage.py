"""References to the JVM's objects are freed in time, with few full collections."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
from py4j.finalizer import ThreadSafeFinalizer

from headrace.extensions.spark.engine import JvmReferences, known

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Proxy:
    """Refers to itself, and is known to py4j, as an object of the JVM is."""

    def __init__(self, number: int) -> None:
        self.itself = self
        name = f"garbage-{number}"
        gone = weakref.ref(self, lambda _: ThreadSafeFinalizer.remove_finalizer(name))
        ThreadSafeFinalizer.add_finalizer(name, gone)


@pytest.fixture(autouse=True)
def _relaxed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the collector from coming by itself, and begin without what other tests left."""
    monkeypatch.setattr(ThreadSafeFinalizer, "finalizers", {})
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000_000)
    yield
    gc.set_threshold(*before)
    gc.collect()


class _Clock:
    """Says a second more each time it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def grown_old(count: int) -> None:
    """Leave garbage that was in use when another lane's turn ended."""
    proxies = [_Proxy(number) for number in range(count)]
    JvmReferences().collect()
    del proxies


def test_old_objects_of_another_lane_are_freed() -> None:
    """A collection of the young objects does not find them, and a full one follows."""
    garbage, before = JvmReferences(), known()
    garbage.collect()
    gc.collect()
    grown_old(500)
    assert known() == before + 500
    garbage.collect()
    assert known() == before


def test_a_few_old_objects_wait() -> None:
    """The few objects of a single micro-batch cause no full collection."""
    garbage, before = JvmReferences(_Clock()), known()
    garbage.collect()
    grown_old(5)
    garbage.collect()
    assert known() == before + 5


def test_looks_at_everything_take_a_twentieth_of_the_time() -> None:
    """After a full collection the next one waits for 19 times its length."""
    clock, before = _Clock(), known()
    garbage = JvmReferences(clock)
    grown_old(500)
    garbage.collect()
    assert known() == before
    grown_old(500)
    garbage.collect()
    assert known() == before + 500
    clock.now += 19
    garbage.collect()
    assert known() == before


def test_a_collector_that_is_off_stays_off() -> None:
    """A collector that the user switched off is not switched on."""
    before = known()
    gc.disable()
    try:
        grown_old(500)
        JvmReferences().collect()
        assert known() == before + 500
    finally:
        gc.enable()
