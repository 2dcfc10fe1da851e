"""Dead letters of records of which the channel knows the offset only."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from headrace.channel.buffer import BatchSlice
from headrace.channel.dead_letters import DeadLetters
from headrace.channel.progress import Outstanding
from headrace.channel.settings import LiveSettings
from headrace.config import ChannelConfig
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.record_runs import OffsetRun
from headrace.core.records import Batch
from headrace.kafka.errors import KafkaUnavailableError, ProduceError
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeRecord, InMemoryBroker, InMemoryDeadLetters
from headrace.testing.channel import QUICK
from tests.unit.channel.conftest import owned_partition

if TYPE_CHECKING:
    from headrace.core.clock import Deadline
    from headrace.core.records import Record, TopicPartition


@pytest.fixture
def letters() -> InMemoryDeadLetters:
    """A dead-letter topic."""
    return InMemoryDeadLetters()


class Log:
    """A ``RecordReader`` that has some records; without any it has no broker."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = offsets

    def read(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        """Return the record, or none without its offset."""
        del deadline
        if not self._offsets:
            raise KafkaUnavailableError(f"{partition}: not read in time")
        found = FakeRecord(*partition, offset, b"k", b"read", [("a", b"h")])
        return found if offset in self._offsets else None


def _fail(error: BaseException) -> None:
    raise error


def _by_reference(broker: InMemoryBroker, letters: InMemoryDeadLetters, log: Log) -> None:
    """Send the record at 7, of which only the offset is known."""
    owned = owned_partition()
    config = {
        **QUICK,
        "rejects": {"failing": "dead_letter", "topic": "dead"},
    }
    sender = DeadLetters(
        LiveSettings(ChannelConfig.model_validate(config)),
        store=letters,
        reader=log,
        catalog=broker.catalog(),
        metrics=Metrics(),
        channel="main",
        code=None,
        clock=SYSTEM_CLOCK,
        fail=_fail,
    )
    run = OffsetRun(7, 8, 100)
    batch = Batch(owned, 7, run, 8, 100, 4)
    item = Outstanding(batch, BatchSlice(7, run, 8, 100), Future(), 0.0)
    sender.send(owned, item, ValueError("no"))


def test_a_record_by_reference_is_read_for_its_letter(
    broker: InMemoryBroker, letters: InMemoryDeadLetters
) -> None:
    """The letter is what the broker has at the offset."""
    _by_reference(broker, letters, Log(7))
    ((_, letter),) = letters.letters
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"read", ("a", b"h"))
    assert letters.said("offset") == ["7"]


@pytest.mark.parametrize("log", [Log(8), Log()], ids=["no record", "no broker"])
def test_a_record_that_cannot_be_read_makes_no_letter(
    broker: InMemoryBroker, letters: InMemoryDeadLetters, log: Log
) -> None:
    """It counts as not sent, so that nothing is committed."""
    with pytest.raises(ProduceError):
        _by_reference(broker, letters, log)
    assert letters.letters == []
