"""Resources that an engine keeps for a result until its end."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.sinks.channel_sink import ChannelSink, Staged


class Sink:
    """Refuses while it is told to."""

    def __init__(self) -> None:
        self.refuses = False
        self.discarded: list[Any] = []

    def commit(self, kept: Any, offsets: Any) -> None:
        """Refuse, or not."""
        del kept, offsets
        if self.refuses:
            raise ConnectionError("away")

    def discard(self, kept: Any) -> None:
        """Record it."""
        self.discarded.append(kept)


def test_resources_of_a_result_are_released_once() -> None:
    """They are released by its commit, or after a failed one when it is discarded."""
    sink, released = Sink(), []
    channel_sink = ChannelSink(sink)  # type: ignore[arg-type]

    channel_sink.commit([Staged("a", {}, release=lambda: released.append("a"))], [])
    assert released == ["a"]

    sink.refuses = True
    staged = Staged("b", {}, release=lambda: released.append("b"))
    with pytest.raises(ConnectionError):
        channel_sink.commit([staged], [])
    assert released == ["a"]
    channel_sink.discard(staged)

    assert (released, sink.discarded) == (["a", "b"], ["b"])
