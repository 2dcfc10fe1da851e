from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.extensions.arrow.engine import ArrowEngine
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.sinks.several import SeveralSink, alone
from headrace.testing import InMemoryZooKeeper, in_memory_channel, make_batch, running
from tests.unit.channel.in_memory import P0, P1, committed, eventually, filled_broker, values
from tests.unit.sinks.memory import Movable, Store

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace import InboundKafkaChannel
    from headrace.testing import InMemoryBroker


class Site:
    """A topic whose records' offsets go to two outputs."""

    def __init__(self) -> None:
        self.broker: InMemoryBroker = filled_broker()
        self.zookeeper = InMemoryZooKeeper()
        self.a, self.b = Store(), Store()

    def channel(self, **settings: Any) -> InboundKafkaChannel:
        """Return a channel with a sink of its own on them."""
        sink: Any = SeveralSink([alone("a", Movable(self.a)), alone("b", Movable(self.b))])
        processor = MicroBatchProcessor(ArrowEngine(_both), sink)
        return in_memory_channel(processor, self.broker, zookeeper=self.zookeeper, **settings)

    def require_each_once(self, count: int) -> None:
        """Both outputs have each record of both partitions once."""
        for store in (self.a, self.b):
            found = sorted((row["partition"], row["offset"]) for row in store.rows)
            assert found == [(number, at) for number in range(2) for at in range(count)]


def _both(table: pa.Table, batch: Any) -> dict[str, pa.Table]:
    del batch
    found = table.select(["partition", "offset"])
    return {"a": found, "b": found}


def test_outputs_that_fail_in_turn_have_every_record_once() -> None:
    """Whichever is ahead after a failure takes nothing when the batch comes again."""
    site = Site()
    site.a.errors += [OSError("a")] * 2
    site.b.errors += [OSError("b")] * 5
    with running(site.channel(batch={"max_records": 4, "linger": 0})):
        assert committed(site.broker, P0, 10)
        assert committed(site.broker, P1, 10)
    site.require_each_once(10)


def test_a_stop_between_the_outputs_is_made_good_in_other_batches() -> None:
    """The next start begins where the last output stands, and cuts what crosses the first one."""
    site = Site()
    with running(site.channel()):
        assert committed(site.broker, P0, 10)
        assert committed(site.broker, P1, 10)
    for partition in (P0, P1):
        site.broker.produce(partition, *values(6))
    site.b.errors += [OSError("b")] * 10_000
    with running(site.channel()):
        eventually(lambda: len(site.a.rows) > 20)
    site.b.errors.clear()
    assert len(site.b.rows) == 20
    for partition in (P0, P1):
        site.broker.produce(partition, *values(14))
    with running(site.channel(batch={"max_records": 100, "linger": 0})):
        assert committed(site.broker, P0, 30)
        assert committed(site.broker, P1, 30)
    site.require_each_once(30)


def test_a_batch_that_is_passed_over_moves_each_output_from_where_it_stands() -> None:
    """Also where one stands within the batch."""
    site = Site()
    sink: Any = SeveralSink([alone("a", Movable(site.a)), alone("b", Movable(site.b))])
    processor = MicroBatchProcessor(ArrowEngine(_both), sink)
    batch = make_batch(values(10))
    site.a.offsets[batch.assignment.identity] = 4
    site.b.offsets[batch.assignment.identity] = 0
    assert processor.stored_offset(batch.assignment) == 0
    processor.pass_over(batch)
    assert [store.offsets[batch.assignment.identity] for store in (site.a, site.b)] == [10, 10]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"c": None}, "a result for 'c', which is none of the outputs a, b; name it in sink.out"),
        ({"a": [1]}, "returned a list; it must return a pyarrow.Table"),
        (5, "returned a int; for several outputs it must return a dict of their names"),
    ],
)
def test_a_wrong_return_value_for_several_outputs_is_explained(returned: Any, words: str) -> None:
    """The error names what the reducer returned and what it must return."""
    site = Site()
    sink: Any = SeveralSink([alone("a", Movable(site.a)), alone("b", Movable(site.b))])
    engine = ArrowEngine(lambda table, batch: returned)  # noqa: ARG005 - as reducers are called
    processor = MicroBatchProcessor(engine, sink)
    channel = in_memory_channel(processor, site.broker, retry={"attempts": 1})
    with running(channel):
        eventually(lambda: channel.failure is not None)
    assert words in str(channel.failure)
