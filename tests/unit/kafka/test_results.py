"""Results with a producer that plays a script of answers."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.core.errors import FencedError, RowsRefusedError, SinkFailedError
from headrace.core.records import ResultRecord, TopicPartition
from headrace.kafka import result_transactions as module
from headrace.kafka import transactional_producer
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.fencing import GroupPartition
from headrace.kafka.ports import StoredOffset
from headrace.kafka.result_transactions import OffsetsBeside, ResultTransactions
from headrace.kafka.transaction_log import TRANSACTION_LOG
from headrace.kafka.transactional_producer import STUCK_AFTER
from headrace.sinks.contract import PartitionCommit
from headrace.testing import FakeClock
from tests.unit.kafka.test_transactional import FENCED, TIMED_OUT, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.core.clock import Deadline

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)
TOPIC_ID = "eYA908pEQBOrCG8OJGHS_Q"
RECORD = ResultRecord("out", b"v")


def share(start: int, stay: str | None = "tx.1", partition: TopicPartition = P0) -> PartitionCommit:
    """Return a share of ten offsets."""
    identity = f"cluster/group/{TOPIC_ID}/{partition.partition}"
    return PartitionCommit(identity, partition, start, start + 10, stay)


class Producing(Stage):
    """The same with records."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.full = 0
        self.report: KafkaError | None = None
        self._callbacks: list[Callable[[KafkaError | None, Any], None]] = []
        self.lose_marks: bool | None = False
        self.failing: OffsetStoreError | None = None
        #: The partitions that the brokers have, whatever the client knows.
        self.known: set[int] = set()

    def finishing(self, _: object, place: GroupPartition, producer: object) -> SimpleNamespace:
        """Return what finishes transactions."""
        assert place == GroupPartition("group.sink", P0)
        assert isinstance(producer, transactional_producer.TransactionalProducer)
        return SimpleNamespace(finish=self._finish)

    def _finish(self) -> None:
        self._called("finish")
        if self.failing is not None:
            raise self.failing

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, *, on_delivery: Any, **more: Any
    ) -> None:
        """Note it."""
        assert (topic, value, key) == ("out", b"v", None)
        assert more in [{"partition": each, "timestamp": 0, "headers": None} for each in (-1, 7)]
        if self.full:
            self.full -= 1
            raise BufferError
        self._callbacks.append(on_delivery)
        self._called("produce")

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        """Return which partitions there are; a look of a producer that connects is not noted."""
        assert timeout > 0
        if topic != TRANSACTION_LOG:
            self._called("look")
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=self.known)})

    def flush(self, _: float) -> int:
        """Report the records as the test wants."""
        self._called("flush")
        while self._callbacks:
            self._callbacks.pop()(self.report, Message())
        return self.left


class Message:
    """Stand for the record of a delivery report."""

    def topic(self) -> str:
        """Return the topic."""
        return "out"


class Offsets:
    """The sink's offsets, without a broker."""

    def __init__(self, stage: Producing) -> None:
        self.stage = stage
        self.offsets: dict[TopicPartition, StoredOffset] = {}
        self.errors = 0
        self.closed = False

    def open(self, properties: Mapping[str, Any], group: str, *, quiet: bool) -> Offsets:
        """Open a store; all of them are this one."""
        assert properties["isolation.level"] == "read_committed"
        assert (group, quiet) == ("group.sink", True)
        return self

    def read_many(
        self, partitions: Collection[TopicPartition], _: Deadline
    ) -> dict[TopicPartition, StoredOffset]:
        """Return what there is of the partitions."""
        if self.errors:
            self.errors -= 1
            raise OffsetStoreError("not coordinator")
        return {p: stored for p, stored in self.offsets.items() if p in partitions}

    def group_metadata(self) -> object:
        """Return nothing of interest."""
        return None

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Producing:
    """Producers that do as they are told."""
    stage = Producing()
    monkeypatch.setattr(transactional_producer, "Producer", stage.producer)
    monkeypatch.setattr(module, "lose_marks", lambda *_: stage.lose_marks)
    monkeypatch.setattr(module, "Finishing", stage.finishing)
    return stage


@pytest.fixture
def offsets(stage: Producing, monkeypatch: pytest.MonkeyPatch) -> Offsets:
    """Offsets that a test sets."""
    offsets = Offsets(stage)
    monkeypatch.setattr(module, "KafkaOffsetStore", offsets.open)
    return offsets


@pytest.fixture
def results(offsets: Offsets) -> ResultTransactions:
    """Results without a broker, which know the topic."""
    del offsets
    results = ResultTransactions({"bootstrap.servers": "127.0.0.1:1"}, "group", "m")
    results._topics[TOPIC_ID] = "events"
    return results


TRANSACTION = ["begin", "produce", "flush", "send", "commit"]


def test_one_producer_commits_for_one_stay(stage: Producing, results: ResultTransactions) -> None:
    """Records go before the offsets; a new stay has a producer of its own and ends the last one."""
    assert results.commit([share(0)], [RECORD]) == []
    assert results.commit([share(0)], [RECORD]) == []
    assert results.commit([share(0, "tx.2")], [RECORD]) == []
    assert stage.opened == ["tx.1", "tx.2"]
    assert stage.calls == ["init", *TRANSACTION, *TRANSACTION, "init", *TRANSACTION]
    with pytest.raises(FencedError, match="over"):
        results.commit([share(0, "tx.1")], [RECORD])
    with pytest.raises(FencedError, match="over"):
        results.commit([share(0, "tx.2"), share(0, "tx.3", P1)], [RECORD])


def test_moves_without_a_claim_have_an_id_of_their_own(
    stage: Producing, results: ResultTransactions
) -> None:
    """It begins as those of the group do, so that the same rights serve."""
    assert results.commit([share(0, None)]) == []
    (opened,) = stage.opened
    assert opened.startswith("headrace.group.m.")


def test_offsets_beside_are_in_the_same_transaction(
    stage: Producing, offsets: Offsets, results: ResultTransactions
) -> None:
    """Before those of the first group; a conflict of either begins nothing."""
    others = ResultTransactions({"bootstrap.servers": "127.0.0.1:1"}, "group", "m")
    beside = OffsetsBeside(others, [share(0, partition=P1)])
    assert results.commit([share(0)], [RECORD], beside) == []
    assert stage.calls == ["init", "begin", "produce", "flush", "send", "send", "commit"]
    assert stage.opened == ["tx.1"]
    offsets.offsets = {P1: StoredOffset(7, 0, "m", TOPIC_ID)}
    (conflict,) = results.commit([share(0)], [RECORD], beside)
    assert conflict.partition == P1
    assert stage.calls[-1] == "commit"
    others.close()


def test_offsets_that_are_elsewhere_are_conflicts(
    stage: Producing, offsets: Offsets, results: ResultTransactions
) -> None:
    """They are compared before anything is begun; those of a former topic count for nothing."""
    offsets.offsets = {P0: StoredOffset(7, 0, "m", TOPIC_ID), P1: StoredOffset(9, 0, "m", "former")}
    (conflict,) = results.commit([share(0), share(0, partition=P1)], [RECORD])
    assert (conflict.partition, conflict.expected, conflict.stored) == (P0, 0, 7)
    assert stage.calls == ["init"]
    assert results.stored(share(0).identity) == 7
    assert results.stored(share(0, partition=P1).identity) is None


def test_a_coordinator_that_moves_is_asked_again(
    offsets: Offsets, results: ResultTransactions
) -> None:
    """A read that failed once is no failure of the batch."""
    offsets.errors = 1
    assert results.commit([share(0)]) == []


@pytest.mark.parametrize("call", ["init", "begin", "produce", "flush", "send", "commit"])
def test_a_producer_that_is_shut_out_is_not_asked_again(
    stage: Producing, results: ResultTransactions, call: str
) -> None:
    """The membership is over after any call's error, and another one may commit."""
    stage.script[call] = deque([FENCED])
    for _ in range(2):
        with pytest.raises(FencedError):
            results.commit([share(0)], [RECORD])
    assert stage.opened == ["tx.1"]
    assert results.commit([share(0, "tx.2")], [RECORD]) == []


@pytest.mark.parametrize("call", ["begin", "produce", "flush", "send"])
def test_a_transaction_that_failed_is_undone_at_once(
    stage: Producing, results: ResultTransactions, call: str
) -> None:
    """Readers of the topic do not wait for the batch to come again."""
    stage.script[call] = deque([TIMED_OUT])
    with pytest.raises(SinkFailedError, match="timed out"):
        results.commit([share(0)], [RECORD])
    assert stage.calls[-1] == ("begin" if call == "begin" else "abort")
    assert results.commit([share(0)], [RECORD]) == []


def test_a_commit_without_an_answer_is_asked_for_again_and_looked_at(
    stage: Producing,
    offsets: Offsets,
    results: ResultTransactions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offsets tell what became of it."""
    stored = {P0: StoredOffset(10, 0, "m", TOPIC_ID)}
    stage.script["commit"] = deque([TIMED_OUT])
    commit = stage.commit_transaction

    def commit_transaction(seconds: float) -> None:
        commit(seconds)
        offsets.offsets = stored

    monkeypatch.setattr(stage, "commit_transaction", commit_transaction)
    assert results.commit([share(0)], [RECORD]) == []
    assert stage.calls[-2:] == ["commit", "commit"]


def test_an_outcome_that_stays_unknown_fails_the_batch(
    stage: Producing, results: ResultTransactions
) -> None:
    """The next attempt begins by deciding the outcome."""
    stage.script["commit"] = deque([TIMED_OUT, TIMED_OUT])
    with pytest.raises(SinkFailedError):
        results.commit([share(0)], [RECORD])
    stage.calls.clear()
    assert results.commit([share(0)], [RECORD]) == []
    assert stage.calls == ["commit", *TRANSACTION]


def test_a_record_that_was_not_taken_is_named(
    stage: Producing, results: ResultTransactions
) -> None:
    """The name comes from the delivery report, or else the count of those left."""
    stage.report = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")
    with pytest.raises(SinkFailedError, match="did not take a record: topic out: denied"):
        results.commit([share(0)], [RECORD])
    stage.report = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
    with pytest.raises(RowsRefusedError, match="topic out: too large"):
        results.commit([share(0)], [RECORD])
    stage.report = KafkaError(KafkaError.INVALID_TIMESTAMP, "invalid time")
    with pytest.raises(RowsRefusedError, match=r"invalid time: .* message.timestamp.after.max.ms"):
        results.commit([share(0)], [RECORD])
    stage.report, stage.left = None, 3
    with pytest.raises(SinkFailedError, match="3 records were not taken in time"):
        results.commit([share(0)], [RECORD])
    assert stage.calls[-1] == "abort"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._UNKNOWN_PARTITION, RowsRefusedError),
        (KafkaError._QUEUE_FULL, SinkFailedError),
    ],
)
def test_a_record_that_the_client_refuses_is_to_blame(
    stage: Producing, results: ResultTransactions, code: int, kind: type[Exception]
) -> None:
    """Only for what will not be otherwise another time."""
    stage.script["produce"] = deque([KafkaError(code, "no")])
    with pytest.raises(kind, match="no"):
        results.commit([share(0)], [RECORD])
    assert stage.calls[-1] == "abort"


NO_PARTITION = KafkaError(KafkaError._UNKNOWN_PARTITION, "no")


@pytest.mark.parametrize(
    ("answers", "look", "kind"),
    [
        ([NO_PARTITION], [], None),
        ([NO_PARTITION, NO_PARTITION], [], SinkFailedError),
        ([NO_PARTITION], [TIMED_OUT], SinkFailedError),
    ],
    ids=["found", "never known", "silent"],
)
def test_a_partition_that_the_client_does_not_know_yet_is_no_record_s_fault(
    stage: Producing,
    results: ResultTransactions,
    answers: list[KafkaError],
    look: list[KafkaError],
    kind: type[Exception] | None,
) -> None:
    """A partition that the brokers have, or say nothing of, is tried once more, else later."""
    stage.known = {0, 7}
    stage.script |= {"produce": deque(answers), "look": deque(look)}
    record = ResultRecord("out", b"v", partition=7)
    if kind is None:
        assert results.commit([share(0)], [record]) == []
        assert stage.calls.count("produce") == 2
    else:
        with pytest.raises(kind):
            results.commit([share(0)], [record])
        assert stage.calls[-1] == "abort"


def test_a_full_queue_is_waited_for(stage: Producing, results: ResultTransactions) -> None:
    """Memory is bounded by the client's queue."""
    stage.full = 3
    assert results.commit([share(0)], [RECORD]) == []


def test_a_fatal_error_under_a_report_is_told_as_such(
    stage: Producing, results: ResultTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has Python make a SystemError of both."""

    def flush(_: float) -> int:
        error = SystemError("returned a result with an exception set")
        error.__cause__ = KafkaException(FENCED)
        raise error

    monkeypatch.setattr(stage, "flush", flush)
    with pytest.raises(FencedError):
        results.commit([share(0)], [RECORD])


def test_a_fatal_error_that_is_lost_is_met_again_in_the_abort(
    stage: Producing, results: ResultTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's call may end without an exception to tell."""

    def flush(_: float) -> int:
        raise SystemError("returned NULL without setting an exception")

    monkeypatch.setattr(stage, "flush", flush)
    with pytest.raises(SinkFailedError, match="gave up without a reason"):
        results.commit([share(0)], [RECORD])
    stage.script["abort"] = deque([FENCED])
    with pytest.raises(FencedError):
        results.commit([share(0)], [RECORD])


def test_a_call_that_does_not_come_back_ends_the_stay(offsets: Offsets, stage: Producing) -> None:
    """The lane never hangs with it, and in the end the member joins anew."""
    clock = FakeClock()
    results = ResultTransactions({}, "group", "m", timeout=0.0, clock=clock)
    stage.hang.clear()
    for _ in range(2):
        with pytest.raises(SinkFailedError):
            results.commit([share(0)], [RECORD])
    clock.advance(STUCK_AFTER + 1)
    with pytest.raises(FencedError, match="busy"):
        results.commit([share(0)], [RECORD])
    stage.hang.set()
    results.close()
    assert not offsets.closed, "nothing was read yet"


def test_closing_closes_what_was_opened(offsets: Offsets, results: ResultTransactions) -> None:
    """A client that a call has is left to it."""
    results.commit([share(0)])
    with results._lock:
        results.close()
    assert not offsets.closed
    results.close()
    assert offsets.closed


@pytest.mark.parametrize("lose_marks", [True, False, None])
def test_an_abort_is_finished_before_the_next_transaction_where_brokers_lose_marks(
    stage: Producing, results: ResultTransactions, lose_marks: bool | None
) -> None:
    """Once; so it is where they do not say of which line they are."""
    stage.lose_marks = lose_marks
    stage.script["send"] = deque([TIMED_OUT])
    with pytest.raises(SinkFailedError):
        results.commit([share(0)], [RECORD])
    del stage.calls[:]
    for _ in range(2):
        assert results.commit([share(0)], [RECORD]) == []
    finished = [] if lose_marks is False else ["finish"]
    assert stage.calls == [*finished, *TRANSACTION, *TRANSACTION]


def test_no_commit_follows_an_unfinished_abort(
    stage: Producing, results: ResultTransactions
) -> None:
    """The commit would bring back aborted records, so each try finishes the abort first."""
    stage.lose_marks = True
    stage.script["send"] = deque([TIMED_OUT])
    with pytest.raises(SinkFailedError):
        results.commit([share(0)], [RECORD])
    del stage.calls[:]
    stage.failing = OffsetStoreError("no answer")
    for _ in range(2):
        with pytest.raises(OffsetStoreError, match="no answer"):
            results.commit([share(0)], [RECORD])
    assert stage.calls == ["finish", "finish"]
