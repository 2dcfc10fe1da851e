"""Code that makes a topology: waited for while it works, and named where it never returns."""

from __future__ import annotations

import sys
import time
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import ConfigError
from headrace.extensions.streams import load
from headrace.extensions.streams.load import load_plan
from headrace.streams import Field, Row, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.extensions.streams.plan import Plan


class _Click(Row):
    url: Field[str]


def _topology() -> Topology:
    app = Topology()
    app.stream("clicks", _Click).to("out")
    return app


@pytest.fixture
def ended() -> Iterator[Event]:
    """Yield what ends functions that would not return, once the test is over."""
    event = Event()
    yield event
    event.set()


def _plan(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> Plan:
    monkeypatch.setattr(sys.modules[__name__], "made", function, raising=False)
    return load_plan(f"{__name__}:made", {}, "shop", "shop", {})


def test_code_that_works_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than it may be silent, as its imports do on a busy machine."""
    monkeypatch.setattr(load, "SILENCE_S", 0.3)

    def made() -> Topology:
        begin = time.thread_time()
        while time.thread_time() < begin + 1.0:
            pass
        return _topology()

    assert [each.name for each in _plan(monkeypatch, made).channels] == ["shop.clicks"]


def test_code_that_waits_for_ever_is_named(monkeypatch: pytest.MonkeyPatch, ended: Event) -> None:
    """The error says that the code does nothing, as where it reads from a server that is away."""
    monkeypatch.setattr(load, "SILENCE_S", 0.3)

    with pytest.raises(ConfigError, match=r"has done nothing for 0\.3 s, without returning"):
        _plan(monkeypatch, lambda: ended.wait(60))


def test_code_that_computes_for_ever_is_named(
    monkeypatch: pytest.MonkeyPatch, ended: Event
) -> None:
    """The error says how long it has computed."""
    monkeypatch.setattr(load, "MOST_WORK_S", 0.3)

    def made() -> None:
        while not ended.is_set():
            pass

    with pytest.raises(ConfigError, match=r"has computed for 0\.3 s, without returning"):
        _plan(monkeypatch, made)
