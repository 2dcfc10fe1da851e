"""Records that arrive while a processor is busy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.in_memory import P0, committed, eventually, values
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.processors import ChannelContext


class Busy(Recorder):
    """Wants no further batch until the test says so."""

    def __init__(self) -> None:
        super().__init__(self.later)
        self.wanted = float("inf")

    def open(self, context: ChannelContext) -> None:
        """Keep the channel's ear."""
        self.wake = context.wake

    def next_batch_at(self) -> float:
        """Return what the test says."""
        return self.wanted


def has_fetched(channel: InboundKafkaChannel, end: int) -> bool:
    """Whether the channel has heard of all records of the partition that has some."""
    return max(reading.high_watermark or 0 for reading in channel.partitions()) == end


def test_records_gather_in_the_channel_until_the_processor_wants_them(
    broker: InMemoryBroker,
) -> None:
    """They are one batch, handed out when it is wanted; one that is full is handed out at once."""
    busy = Busy()
    channel = in_memory_channel(
        busy, broker, max_in_flight=3, batch={"max_records": 3, "linger": 0}
    )
    broker.produce(P0, *values(1))
    with running(channel):
        busy.wait(lambda: busy.delivered() == [(0, 1, 1)])
        broker.produce(P0, *values(3))
        busy.wait(lambda: busy.delivered()[1:] == [(1, 4, 1)])
        for end in (5, 6):
            broker.produce(P0, *values(1))
            eventually(partial(has_fetched, channel, end))
        busy.wanted = 0.0
        busy.wake()
        busy.wait(lambda: busy.delivered()[2:] == [(4, 6, 1)])
        for future in busy.futures:
            future.set_result(BatchResponse.advance())
        assert committed(broker, P0, 6)


def test_the_first_batch_of_a_partition_does_not_wait(broker: InMemoryBroker) -> None:
    """A partition without open batches has its records delivered as soon as they are due."""
    busy = Busy()
    broker.produce(P0, *values(1))
    with running(in_memory_channel(busy, broker)):
        busy.wait(lambda: busy.delivered() == [(0, 1, 1)])
        busy.futures[0].set_result(BatchResponse.advance())
        assert committed(broker, P0, 1)
