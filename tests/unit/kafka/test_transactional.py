"""A transactional store with a producer that plays a script of answers."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import transactional_producer
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.offsets import KafkaOffsetStore, TransactionalOffsetStore
from headrace.kafka.ports import Commit, CommitRefusal, StoredOffset
from headrace.kafka.transactional_producer import STUCK_AFTER
from headrace.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.kafka.ports import CommitFailure

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)
WAIT = 10.0
PROPERTIES = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}

TIMED_OUT = KafkaError(KafkaError._TIMED_OUT, "timed out", retriable=True)
REFUSED = KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "refused")
PUT_OFF = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "put off", retriable=True)
ABORT = KafkaError(KafkaError._TIMED_OUT, "abort", txn_requires_abort=True)
FENCED = KafkaError(KafkaError._FENCED, "fenced", fatal=True)


class Stage:
    """Producers that note their calls and fail as the script of each call says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.opened: list[str] = []
        self.script: dict[str, deque[KafkaError]] = {}
        self.hang = Event()
        self.hang.set()

    def producer(self, properties: Mapping[str, Any]) -> Stage:
        """Open a producer; all of them are this one."""
        self.opened.append(properties["transactional.id"])
        return self

    def _called(self, name: str) -> None:
        self.calls.append(name)
        assert self.hang.wait(WAIT)
        if self.script.get(name):
            raise KafkaException(self.script[name].popleft())

    def init_transactions(self, _: float) -> None:
        """Note it."""
        self._called("init")

    def list_topics(self, topic: str, timeout: float) -> object:
        """Return at once, as one that is connected."""
        return topic, timeout

    def begin_transaction(self) -> None:
        """Note it."""
        self._called("begin")

    def send_offsets_to_transaction(self, *_: object) -> None:
        """Note it."""
        self._called("send")

    def commit_transaction(self, _: float) -> None:
        """Note it."""
        self._called("commit")

    def abort_transaction(self, _: float) -> None:
        """Note it."""
        self._called("abort")

    def poll(self, _: float) -> None:
        """Poll without events."""


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Producers that do as they are told."""
    stage = Stage()
    monkeypatch.setattr(transactional_producer, "Producer", stage.producer)
    return stage


@pytest.fixture
def store(stage: Stage) -> Iterator[TransactionalOffsetStore]:
    """A store without a broker."""
    del stage
    store = TransactionalOffsetStore(PROPERTIES, "group")
    yield store
    store.close()


@pytest.fixture
def commit(store: TransactionalOffsetStore) -> Callable[..., CommitFailure | None]:
    """Commit for P0 as a stay in the group."""

    def commit(stay: str = "tx.1", deadline: Deadline | None = None) -> CommitFailure | None:
        commits = {P0: Commit(7, 1, "a", transactional_id=stay)}
        return store.commit(commits, deadline or Deadline.after(WAIT)).get(P0)

    return commit


def test_one_producer_commits_for_one_stay(
    stage: Stage, commit: Callable[..., CommitFailure | None]
) -> None:
    """It is opened with the first commit, serves all of the stay, and a new stay has its own."""
    assert [commit(), commit(), commit("tx.2")] == [None, None, None]
    assert stage.opened == ["tx.1", "tx.2"]
    transaction = ["begin", "send", "commit"]
    assert stage.calls == ["init", *transaction, *transaction, "init", *transaction]
    failure = commit()
    assert failure is not None
    assert failure.refusal is CommitRefusal.MEMBERSHIP
    assert stage.opened == ["tx.1", "tx.2"], "a stay that is over is never begun anew"


@pytest.mark.parametrize(
    ("call", "error", "then"),
    [
        ("init", REFUSED, ["init", "begin", "send", "commit"]),
        ("begin", TIMED_OUT, ["begin", "send", "commit"]),
        ("send", TIMED_OUT, ["abort", "begin", "send", "commit"]),
        ("send", ABORT, ["abort", "begin", "send", "commit"]),
        ("commit", TIMED_OUT, ["commit", "begin", "send", "commit"]),
        ("commit", ABORT, ["abort", "begin", "send", "commit"]),
    ],
)
def test_an_open_transaction_is_settled_first(
    stage: Stage,
    commit: Callable[..., CommitFailure | None],
    call: str,
    error: KafkaError,
    then: list[str],
) -> None:
    """After a time-out the requested end is requested again; other transactions are aborted."""
    stage.script[call] = deque([error])
    failure = commit()
    assert failure is not None
    assert failure.refusal is CommitRefusal.NONE
    stage.calls.clear()
    assert commit() is None
    assert stage.calls == then


@pytest.mark.parametrize(
    ("answers", "opened"),
    [
        ([TIMED_OUT], 1),
        ([PUT_OFF], 2),
        ([TIMED_OUT, PUT_OFF, PUT_OFF], 3),
        # a transaction that cannot be aborted, because a broker is missing
        ([PUT_OFF] * 50, 11),
    ],
)
def test_a_producer_that_is_put_off_begins_with_another_client(
    stage: Stage,
    commit: Callable[..., CommitFailure | None],
    answers: list[KafkaError],
    opened: int,
) -> None:
    """A client of before asks again late; one that has no answer yet goes on waiting for it."""
    stage.script["init"] = deque(answers)
    assert commit() is None
    assert stage.opened == ["tx.1"] * opened
    assert stage.calls == ["init"] * (len(answers) + 1) + ["begin", "send", "commit"]


def test_a_producer_that_is_put_off_beyond_the_deadline_has_failed(
    stage: Stage, commit: Callable[..., CommitFailure | None]
) -> None:
    """The failure is the last answer of the brokers, and the next commit asks again."""
    clock = FakeClock()

    def put_off(_: float) -> None:
        clock.advance(WAIT)
        raise KafkaException(PUT_OFF)

    stage.init_transactions, init = put_off, stage.init_transactions  # type: ignore[method-assign]
    failure = commit(deadline=Deadline.after(WAIT, clock))
    assert "put off" in str(failure)
    stage.init_transactions = init  # type: ignore[method-assign]
    assert commit() is None


@pytest.mark.parametrize("call", ["init", "begin", "send", "commit"])
def test_a_producer_that_is_shut_out_is_not_asked_again(
    stage: Stage, commit: Callable[..., CommitFailure | None], call: str
) -> None:
    """The stay in the group is over, whatever call heard of it first."""
    stage.script[call] = deque([FENCED])
    refusals = [failure.refusal for failure in (commit(), commit()) if failure is not None]
    assert refusals == [CommitRefusal.MEMBERSHIP] * 2
    assert stage.calls[-1] == call
    assert commit("tx.2") is None


def test_a_call_that_does_not_come_back_ends_the_stay(
    stage: Stage,
    commit: Callable[..., CommitFailure | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The committer never hangs with it; once the brokers answer others, it is given up."""
    clock = FakeClock()
    stage.hang.clear()
    outcomes = [commit(deadline=Deadline.after(0, clock))]
    outcomes.append(commit(deadline=Deadline.after(0, clock)))
    clock.advance(STUCK_AFTER)

    def unreachable(*_: object) -> None:
        raise OffsetStoreError("no broker")

    monkeypatch.setattr(KafkaOffsetStore, "read_many", unreachable)
    outcomes.append(commit(deadline=Deadline.after(0, clock)))
    monkeypatch.setattr(KafkaOffsetStore, "read_many", lambda *_: {})
    outcomes.append(commit(deadline=Deadline.after(0, clock)))
    refusals = [outcome.refusal for outcome in outcomes if outcome is not None]
    assert refusals == [CommitRefusal.NONE] * 3 + [CommitRefusal.MEMBERSHIP]
    stage.hang.set()
    assert commit("tx.2") is None


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> StoredOffset:
    """Return the offset that a broker has for every partition."""
    offset = StoredOffset(5, 1)

    def read_many(_: object, wanted: Iterable[TopicPartition], __: Deadline) -> object:
        return dict.fromkeys(wanted, offset)

    monkeypatch.setattr(KafkaOffsetStore, "read_many", read_many)
    return offset


@pytest.mark.parametrize(("call", "then"), [("send", "abort"), ("commit", "commit")])
def test_a_new_claim_waits_for_the_commit_of_an_earlier_one(
    stage: Stage,
    store: TransactionalOffsetStore,
    commit: Callable[..., CommitFailure | None],
    stored: StoredOffset,
    *,
    call: str,
    then: str,
) -> None:
    """The offset is not read while an earlier commit may still be stored."""
    stage.script[call] = deque([TIMED_OUT, TIMED_OUT])
    stage.script[then] = deque([TIMED_OUT, TIMED_OUT] if then == call else [TIMED_OUT])
    assert commit() is not None
    for _ in range(2):
        with pytest.raises(OffsetStoreError, match=r"events-0 .* not decided yet"):
            store.find([P0, P1], Deadline.after(WAIT))
        assert store.find([P1], Deadline.after(WAIT)) == {P1: stored}
        store.serve()
    assert stage.calls[-1] == then
    assert store.find([P0], Deadline.after(WAIT)) == {P0: stored}
    calls = list(stage.calls)
    store.serve()
    assert stage.calls == calls


def test_a_fenced_producer_s_commit_need_not_be_waited_for(
    stage: Stage,
    store: TransactionalOffsetStore,
    commit: Callable[..., CommitFailure | None],
    stored: StoredOffset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later stay fences it like anybody else's."""
    monkeypatch.setattr(KafkaOffsetStore, "fence", lambda *_: None)
    stage.script["commit"] = deque([TIMED_OUT])
    assert commit() is not None
    store.fence(["tx.1"], P0, Deadline.after(WAIT))
    assert store.find([P0], Deadline.after(WAIT)) == {P0: stored}


def test_a_settling_that_does_not_come_back_ends_the_stay(
    stage: Stage, stored: StoredOffset
) -> None:
    """The next commit fails because the membership is over, instead of waiting for ever."""
    clock = FakeClock()
    commits = {P0: Commit(7, 1, "a", transactional_id="tx.1")}
    with closing(TransactionalOffsetStore(PROPERTIES, "group", clock)) as store:
        stage.script["commit"] = deque([TIMED_OUT])
        assert store.commit(commits, Deadline.after(WAIT, clock)) != {}
        stage.hang.clear()
        store.serve()
        clock.advance(STUCK_AFTER)
        store.serve()
        assert store.find([P0], Deadline.after(WAIT)) == {P0: stored}
        failure = store.commit(commits, Deadline.after(WAIT))[P0]
        stage.hang.set()
    assert failure.refusal is CommitRefusal.MEMBERSHIP


def test_a_claim_without_a_producer_commits_plainly(
    stage: Stage, store: TransactionalOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's hold on a stopped group has no stay to be fenced."""
    plain: list[object] = []

    def note(_: object, offsets: object, __: Deadline) -> dict[object, object]:
        plain.append(offsets)
        return {}

    monkeypatch.setattr(KafkaOffsetStore, "commit", note)
    assert store.commit({P0: Commit(7, 1)}, Deadline.after(WAIT)) == {}
    assert plain == [{P0: Commit(7, 1)}]
    assert stage.opened == []
