"""Threads of a channel that fail."""

from __future__ import annotations

from threading import Event

import pytest

from headrace.channel.states import ChannelState
from headrace.channel.topics import KnownTopics
from headrace.core.clock import Deadline
from headrace.core.errors import FatalError
from headrace.testing import InMemoryBroker, in_memory_channel
from headrace.testing.broker import InMemoryOffsets, InMemorySource
from tests.unit.channel.recorder import PATIENCE, Recorder


def explode(*_: object) -> None:
    """Raise an unexpected error."""
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("owner", "method", "thread"),
    [
        (InMemorySource, "fetch", "fetcher"),
        (InMemoryOffsets, "commit", "committer"),
        (KnownTopics, "take_in", "topics"),
    ],
)
def test_a_thread_that_fails_fails_its_channel(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, thread: str
) -> None:
    """The channel says which thread ended and why, instead of standing still in silence."""
    monkeypatch.setattr(owner, method, explode)
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.01)
    broker = InMemoryBroker()
    broker.create_topic("events")
    failed = Event()
    channel = in_memory_channel(Recorder(), broker, on_failure=lambda *_: failed.set())
    channel.start(Deadline.after(PATIENCE))
    assert failed.wait(PATIENCE)
    assert isinstance(channel.failure, FatalError)
    assert f"{thread} ended with RuntimeError: out of order" in str(channel.failure)
    assert channel.state is ChannelState.FAILED
    channel.stop(Deadline.after(0.2))
