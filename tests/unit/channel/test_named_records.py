"""Errors that name their record, with the policies that send none anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.errors import PoisonRecordError
from headrace.core.records import offset_of
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.in_memory import P0, committed, eventually, values
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from headrace.core.records import Batch


def test_skip_passes_over_a_named_record_alone(broker: InMemoryBroker) -> None:
    """Records around the named one are delivered, with attempts of their own."""
    broker.produce(P0, *values(8))

    def answer(batch: Batch) -> BatchResponse:
        offsets = [offset_of(record) for record in batch.records]
        if 3 in offsets:
            raise PoisonRecordError(P0, 3, "no")
        if batch.first_offset == 4 and batch.attempt < 4:
            raise ValueError("not yet")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    skip: dict[str, Any] = {
        "retry": {"attempts": 5, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "skip"},
    }
    with running(in_memory_channel(recorder, broker, **skip)):
        assert committed(broker, P0, 8)
    passed = [call[1:] for call in recorder.calls[0] if call[0] == "passed over"]
    assert passed == [(3, 4)]
    assert recorder.delivered()[:3] == [(0, 8, 1), (0, 3, 2), (3, 4, 2)]
    assert recorder.delivered()[3:] == [(4, 8, 2), (4, 8, 3), (4, 8, 4)]


def test_stop_tries_a_named_record_as_often_as_any(broker: InMemoryBroker) -> None:
    """The policy is about batches: it stops after retry.attempts deliveries of the whole."""
    broker.produce(P0, *values(4))

    def answer(batch: Batch) -> BatchResponse:
        raise PoisonRecordError(batch.partition, 2, "no")

    recorder = Recorder(answer)
    stop: dict[str, Any] = {"retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "1ms"}}
    channel = in_memory_channel(recorder, broker, **stop)
    with running(channel):
        eventually(lambda: channel.failure is not None)
    assert recorder.delivered() == [(0, 4, 1), (0, 4, 2)]
