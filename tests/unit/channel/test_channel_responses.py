"""Effects of each response on a whole channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from headrace.core.records import Batch

from tests.unit.channel.in_memory import P0, P1, committed, values


@pytest.mark.parametrize("in_flight", [1, 2])
def test_commits_keep_the_order_of_batches(broker: InMemoryBroker, in_flight: int) -> None:
    """A batch's offset is stored after those before it, in any order of completion."""
    broker.produce(P0, *values(20))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=in_flight)):
        recorder.wait(lambda: len(recorder.futures) == in_flight)
        recorder.futures[-1].set_result(BatchResponse.advance())
        if in_flight == 2:
            assert broker.committed("group", P0) == StoredOffset(0, 1)
            recorder.futures[0].set_result(BatchResponse.advance())
        else:
            recorder.wait(lambda: len(recorder.futures) == 2)
            recorder.futures[1].set_result(BatchResponse.advance())
        assert committed(broker, P0, 20)
    offsets = [stored.offset for partition, stored in broker.commits if partition == P0]
    assert offsets == sorted(offsets)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1)]


#: response to the batch 10..20 (of 30, 0..10 advanced) -> next delivery, final commit of the group
MATRIX = {
    "continue": (BatchResponse.continue_(), (20, 30, 1), 30),
    "continue at 5": (BatchResponse.continue_(offset=5), (5, 15, 1), 30),
    "continue at 15": (BatchResponse.continue_(offset=15), (15, 20, 1), 30),
    "advance": (BatchResponse.advance(), (20, 30, 1), 30),
    "advance at 5": (BatchResponse.advance(offset=5), (5, 15, 1), 30),
    "advance at 15": (BatchResponse.advance(offset=15), (15, 20, 1), 30),
    "advance, commit 15": (BatchResponse.advance(commit_to=15), (20, 30, 1), 30),
    "revert": (BatchResponse.revert(), (10, 20, 1), 30),
    "revert to 12": (BatchResponse.revert(offset=12), (12, 20, 1), 30),
    "revert to 0": (BatchResponse.revert(offset=0), (0, 10, 1), 30),
    "small next": (BatchResponse.advance(max_records=3), (20, 23, 1), 30),
    "small again": (BatchResponse.revert(max_records=3), (10, 13, 1), 30),
    "wait": (BatchResponse.advance(wait=0.001), (20, 30, 1), 30),
}


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("case", MATRIX)
def test_each_response_has_its_effect_on_delivery_and_commit(
    broker: InMemoryBroker, case: str, in_flight: int
) -> None:
    """Delivery continues where the response says, with one or two batches in flight."""
    expected: tuple[object, ...]
    response, expected, end = MATRIX[case]
    broker.produce(P0, *values(30))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=in_flight)):
        recorder.wait(lambda: bool(recorder.futures))
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.wait(lambda: len(recorder.futures) >= 1 + in_flight)
        before = 1 + in_flight
        withdrawn = recorder.futures[2:before]
        recorder.futures[1].set_result(response)
        if response.offset is None and response.request.value != "revert" and in_flight == 2:
            assert not any(future.cancelled() for future in withdrawn)
            expected = recorder.delivered()[2]
        else:
            recorder.wait(lambda: len(recorder.futures) > before)
            assert all(future.cancelled() for future in withdrawn)
            assert recorder.delivered()[before] == expected
        recorder.answer = lambda _: BatchResponse.advance()
        for future in recorder.futures:
            if not future.done():
                future.set_result(BatchResponse.advance())
        assert committed(broker, P0, end)
    assert expected in recorder.delivered()
    assert recorder.overlaps == 0


def test_a_next_size_applies_to_batches_cut_after_the_answer(broker: InMemoryBroker) -> None:
    """A batch that was out already keeps its size; the one after it has the one asked for."""
    broker.produce(P0, *values(40))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=2)):
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.futures[0].set_result(BatchResponse.advance(max_records=4))
        recorder.wait(lambda: len(recorder.futures) == 3)
        assert recorder.delivered() == [(0, 10, 1), (10, 20, 1), (20, 24, 1)]
        recorder.answer = lambda _: BatchResponse.advance()
        for future in recorder.futures[1:]:
            future.set_result(BatchResponse.advance())
        assert committed(broker, P0, 40)


def test_waiting_holds_one_partition_and_no_other(broker: InMemoryBroker) -> None:
    """While one partition waits for an hour, the other goes on with the only worker."""
    broker.produce(P0, *values(20))
    broker.produce(P1, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        return BatchResponse.advance(wait=3600 if batch.partition == P0 else 0)

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker, workers=1)):
        assert committed(broker, P1, 20)
        assert committed(broker, P0, 10)
    assert recorder.delivered(0) == [(0, 10, 1)]
