"""The records of the brokers' transaction log."""

from __future__ import annotations

import struct

import pytest

from headrace.core.records import TopicPartition
from headrace.kafka.transaction_log import (
    LoggedTransaction,
    TransactionLogError,
    TransactionState,
    decode_transaction,
)

EXPECTED = LoggedTransaction(
    "headrace.g.one.7",
    TransactionState.ONGOING,
    producer_id=4_000_000_001,
    producer_epoch=3,
    timeout_ms=15_000,
    updated=1_700_000_000_500,
    started=1_700_000_000_000,
    partitions=(TopicPartition("__consumer_offsets", 12), TopicPartition("t", 0)),
)


def key(name: str = "headrace.g.one.7", version: int = 0) -> bytes:
    """Return a key, as the coordinator writes it."""
    return struct.pack(f">hh{len(name)}s", version, len(name), name.encode())


def head(version: int, state: int = 1) -> bytes:
    """Return what a value begins with."""
    return struct.pack(">hqhib", version, 4_000_000_001, 3, 15_000, state)


def value_0(state: int = 1, started: int = 1_700_000_000_000) -> bytes:
    """Return a value of the first version: lengths of two and of four bytes."""
    partitions = struct.pack(">i", 2)
    for topic, number in (("t", 0), ("__consumer_offsets", 12)):
        partitions += struct.pack(f">h{len(topic)}sii", len(topic), topic.encode(), 1, number)
    return head(0, state) + partitions + struct.pack(">qq", 1_700_000_000_500, started)


def value_1(*, tags: bytes = b"\x00") -> bytes:
    """Return a value of the second version: lengths are one more, in as many bytes as needed."""
    partitions = bytes([3])
    for topic, number in (("t", 0), ("__consumer_offsets", 12)):
        partitions += bytes([len(topic) + 1]) + topic.encode() + b"\x02"
        partitions += struct.pack(">i", number) + tags
    times = struct.pack(">qq", 1_700_000_000_500, 1_700_000_000_000)
    return head(1) + partitions + times + b"\x01\x00\x08" + struct.pack(">q", 5)


@pytest.mark.parametrize("value", [value_0(), value_1(), value_1(tags=b"\x01\x81\x01\x02ab")])
def test_both_versions_are_read(value: bytes) -> None:
    """With fields that are not known passed over."""
    assert decode_transaction(key(), value) == EXPECTED


def test_one_without_partitions_is_read() -> None:
    """As a producer that has only begun leaves it."""
    nothing = struct.pack(">iqq", -1, 5, -1)
    found = decode_transaction(key(), head(0, 0) + nothing)
    assert found is not None
    assert (found.state, found.started, found.partitions) == (TransactionState.EMPTY, None, ())
    assert not found.state.is_open


def test_open_states_are_those_that_readers_wait_for() -> None:
    """Decided ones are open until their partitions were told."""
    assert [each.value for each in TransactionState if each.is_open] == [1, 2, 3, 7]


def test_records_of_another_kind_are_passed_over() -> None:
    """A later version of the key may be of something else."""
    assert decode_transaction(key(version=1), b"whatever") is None


@pytest.mark.parametrize(
    "value", [head(2), b"\x00", value_0(state=99), value_0()[:20], head(1) + b"\xff" * 40]
)
def test_what_is_not_understood_is_refused(value: bytes) -> None:
    """The message names the brokers' own tool."""
    with pytest.raises(TransactionLogError, match="kafka-transactions"):
        decode_transaction(key(), value)
