"""The records of the brokers' transaction log."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import IsolationLevel
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.records import TopicPartition
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.transaction_log import (
    OFFSETS_TOPIC,
    Decision,
    LoggedTransaction,
    TransactionLog,
    TransactionState,
    decided,
    decode_transaction,
    internal_partition,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

OUT, OTHER = TopicPartition("out", 0), TopicPartition("other", 0)

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
    """The transaction is that of a producer that has only begun."""
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
def test_an_unknown_entry_is_refused(value: bytes) -> None:
    """The message names the brokers' own tool."""
    with pytest.raises(OffsetStoreError, match="kafka-transactions"):
        decode_transaction(key(), value)


OFFSETS = TopicPartition(OFFSETS_TOPIC, 12)
PLACES = (OFFSETS, TopicPartition("state", 0), TopicPartition("out", 1))
ENDED = {
    Decision.COMMIT: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    Decision.ABORT: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}


class Coordinator:
    """Writes the log of one id as the brokers do, and knows what was decided where."""

    def __init__(self) -> None:
        self.log: list[LoggedTransaction] = []
        self.truth: dict[TopicPartition, Decision] = {}
        self.epoch = -1

    def write(self, state: TransactionState, *partitions: TopicPartition) -> None:
        """Write a state."""
        self.log.append(LoggedTransaction("a", state, 4, self.epoch, 1, 2, 3, partitions))

    def begin(self) -> None:
        """Begin a producer: the first one, or one that fences its predecessor."""
        self.epoch += 1
        self.write(TransactionState.EMPTY)

    def transact(self, partitions: tuple[TopicPartition, ...], decision: Decision) -> None:
        """Run a transaction, whose partitions become known one after the other."""
        for count in range(1, len(partitions) + 1):
            self.write(TransactionState.ONGOING, *partitions[:count])
        prepare, complete = ENDED[decision]
        self.write(prepare, *partitions)
        self.write(complete)
        self.truth |= dict.fromkeys(partitions, decision)


@st.composite
def histories(draw: st.DrawFn) -> Coordinator:
    """Make up what a producer and those who shut it out did."""
    found = Coordinator()
    found.begin()
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            found.begin()
        decision = draw(st.sampled_from([Decision.COMMIT, Decision.ABORT]))
        places = draw(st.lists(st.sampled_from(PLACES[1:]), unique=True))
        # a commit of ours always has an offset
        if decision is Decision.COMMIT or draw(st.booleans()):
            places.append(OFFSETS)
        if places:
            found.transact(tuple(places), decision)
    if draw(st.booleans()):
        found.begin()
    return found


@given(histories())
def test_the_whole_log_says_what_was_decided_of_each_partition(made: Coordinator) -> None:
    """Each partition has its decision, or none, for any later transactions elsewhere."""
    found = decided(made.log)
    assert found.partitions == made.truth
    assert found.of_group is made.truth.get(OFFSETS, Decision.NONE)


@given(histories(), st.data())
def test_a_compacted_log_says_the_same_or_that_it_does_not_know(
    made: Coordinator, data: st.DataObject
) -> None:
    """A cleaned log gives the decision or UNKNOWN, and never another decision."""
    cleaned = data.draw(st.integers(1, len(made.log)))
    found = decided(made.log[cleaned - 1 :])
    assert found.of_group in {made.truth.get(OFFSETS, Decision.NONE), Decision.UNKNOWN}
    assert found.partitions.items() <= made.truth.items()


@pytest.mark.parametrize("end", range(1, 4))
def test_a_kill_after_the_decision_is_a_commit_and_before_it_is_none(end: int) -> None:
    """Only a prepared transaction was decided, at any step of its owner's end."""
    made = Coordinator()
    made.begin()
    made.transact(PLACES[:1], Decision.COMMIT)
    step = made.log[: end + 1]
    assert decided(step).of_group is (Decision.NONE if end == 1 else Decision.COMMIT)


def test_a_decision_under_another_producer_id_is_out_of_reach() -> None:
    """An expired id begins again with another producer id, whose marks end no earlier one."""
    made = Coordinator()
    made.begin()
    made.transact(PLACES, Decision.COMMIT)
    again = LoggedTransaction("a", TransactionState.EMPTY, 5, 0, 1, 2, None, ())
    for found in (decided([*made.log, None]), decided([*made.log, again])):
        assert (found.partitions, found.of_group) == ({}, Decision.UNKNOWN)
    assert decided([]).of_group is Decision.UNKNOWN


@pytest.mark.parametrize(
    ("name", "number"),
    [("", 0), ("a", 47), ("headrace.g.one.7", 13), ("polygenelubricants", 0), ("\U0001f600", 49)],
)
def test_an_id_is_in_the_partition_that_java_s_hash_says(name: str, number: int) -> None:
    """The second last has the least number of all as its hash."""
    assert internal_partition(name, 50) == number


class Held(TransactionLog):
    """A log with two partitions: where readers wait as told, and how often all of it is read."""

    def __init__(self, *stable: dict[TopicPartition, int]) -> None:
        super().__init__({"bootstrap.servers": "nowhere"})
        self.stable = deque(stable)
        self.reads = 0

    def _ends(
        self, partitions: Collection[TopicPartition], level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        if level == IsolationLevel.READ_UNCOMMITTED:
            return dict.fromkeys(partitions, 9)
        now = self.stable.popleft() if len(self.stable) > 1 else self.stable[0]
        return {each: now[each] for each in partitions}

    def _partitions(self) -> int:
        return 1

    def _records(self, _: Iterable[int]) -> Iterable[tuple[bytes, bytes | None]]:  # type: ignore[override]
        self.reads += 1
        return []


def test_transactions_that_go_on_are_waited_for_and_the_log_is_not_read_for_them() -> None:
    """Later ones of the same partition, after where it ended, hold back nothing of before."""
    log = Held({OUT: 3, OTHER: 5}, {OUT: 7, OTHER: 9}, {OUT: 9})
    assert log.holds([OUT, OTHER]) == {}
    assert log.reads == 0


def test_the_log_is_read_for_what_stays_held_back() -> None:
    """A hold has the offset that readers waited at last, and the end of before."""
    log = Held({OUT: 3, OTHER: 5}, {OUT: 4, OTHER: 9}, {OUT: 4})
    (hold,) = log.holds([OUT, OTHER]).values()
    assert (hold.stable, hold.end, log.reads) == (4, 9, 1)
