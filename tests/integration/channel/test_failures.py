"""The behaviour of a channel when its broker falters, and the leftovers of a failed start."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.kafka.errors import UnknownTopicError
from headrace.processors import BatchProcessor, BatchResponse
from tests.integration.channel.rig import CHANNEL, WAIT, Group, Notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.records import Batch
    from headrace.processors import ChannelContext


class Unready(BatchProcessor):
    """Does not get ready; notes that it was closed all the same."""

    def __init__(self) -> None:
        self.closed = 0

    def open(self, context: ChannelContext) -> None:
        """Refuse."""
        raise StartError(f"{context.channel}: not ready")

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Never called."""
        raise AssertionError(batch)

    def close(self, deadline: Deadline) -> None:
        """Note it."""
        del deadline
        self.closed += 1


def test_a_start_that_fails_leaves_no_thread_and_no_node(
    make_group: Callable[..., Group],
) -> None:
    """Whether the processor or the topic is what is missing: all is as before the start."""
    group, unready = make_group(), Unready()
    before = set(threading.enumerate())
    with pytest.raises(StartError, match="not ready"):
        group.controller(unready).start(Deadline.after(WAIT))
    with pytest.raises(UnknownTopicError, match=r"no\.such\.topic"):
        group.controller(Notes(), topics=[group.topic, "no.such.topic"]).start(Deadline.after(WAIT))
    assert unready.closed == 1
    assert set(threading.enumerate()) - before == set()
    assert group.nodes() == {}
    assert group.offsets() == [None]


def test_a_channel_that_fails_to_start_takes_the_others_back(
    make_group: Callable[..., Group],
) -> None:
    """When the second channel cannot start, the first one leaves its group in order."""
    group = make_group()
    document = group.document("a")
    document["channels"]["second"] = {
        **document["channels"][CHANNEL],
        "topics": ["no.such.topic"],
        "group": f"{group.name}.second",
    }
    before = set(threading.enumerate())
    with pytest.raises(UnknownTopicError):
        group.start(document, {CHANNEL: Notes(), "second": Notes()})
    assert set(threading.enumerate()) - before == set()
    assert group.nodes().get(group.paths.ids, []) == []
