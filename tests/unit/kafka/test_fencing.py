"""Fencing with a producer that plays a script of answers."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.records import FINISHED_KEY, TopicPartition
from headrace.kafka import fencing, transactional_producer
from headrace.kafka.errors import KafkaAccessError, OffsetStoreError
from headrace.kafka.fencing import GroupPartition, fence_producers
from headrace.kafka.offset_log import SentOffset
from headrace.kafka.transaction_log import OFFSETS_TOPIC, Decided, Decision, Hold
from tests.unit.kafka.test_transactional import FENCED, REFUSED, TIMED_OUT, Stage

PLACE = GroupPartition("group", TopicPartition("events", 0))
WAIT = 10.0

DENIED = KafkaError(
    KafkaError.GROUP_AUTHORIZATION_FAILED, "may not read the group", txn_requires_abort=True
)
ABORTED = ["init", "begin", "send", "abort"]
COMMITTED = ["init", "init", "begin", "send", "commit"]
OFFSETS, OUT = TopicPartition(OFFSETS_TOPIC, 7), TopicPartition("out", 3)


class Finisher(Stage):
    """Producers that note what they produce as well."""

    def __init__(self) -> None:
        super().__init__()
        self.produced: list[TopicPartition] = []

    def produce(self, topic: str, _: object, *, partition: int, **__: object) -> None:
        """Note it."""
        self.produced.append(TopicPartition(topic, partition))
        self._called("produce")

    def flush(self, _: float) -> None:
        """Note it."""
        self._called("flush")


class Brokers:
    """Hold what the log says of each id, and whether offsets and topics are in doubt."""

    def __init__(self) -> None:
        self.decided = Decided({}, Decision.NONE)
        self.refused: Exception | None = None
        self.stable, self.answers = True, True
        self.held: dict[TopicPartition, Hold] = {}
        self.coming: dict[TopicPartition, Hold] = {}
        self.sent: dict[TopicPartition, SentOffset] = {}
        self.rows: list[SimpleNamespace] = []

    def log(self, _: object) -> SimpleNamespace:
        """Open the log."""
        return SimpleNamespace(decided=self._decided, holds=self._holds)

    def _decided(self, ids: list[str]) -> dict[str, Decided]:
        if self.refused is not None:
            raise self.refused
        return dict.fromkeys(ids, self.decided)

    def _holds(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Hold]:
        found = {each: hold for each, hold in self.held.items() if each in partitions}
        self.held |= self.coming
        return found


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Finisher:
    """Producers that do as they are told."""
    stage = Finisher()
    monkeypatch.setattr(transactional_producer, "Producer", stage.producer)
    return stage


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Brokers that say what they are told to."""
    brokers = Brokers()
    monkeypatch.setattr(fencing, "TransactionLog", brokers.log)
    monkeypatch.setattr(fencing, "sent_offsets", lambda *_: brokers.sent)
    monkeypatch.setattr(fencing, "read_log", lambda *_: iter(brokers.rows))
    monkeypatch.setattr(fencing.Finishing, "_is_stable", lambda _: brokers.stable)
    monkeypatch.setattr(fencing.Finishing, "_answers", lambda _: brokers.answers)
    return brokers


def fence(*ids: str, place: GroupPartition | None = PLACE) -> None:
    """Shut producers out."""
    fence_producers({"bootstrap.servers": "nowhere"}, ids, Deadline.after(WAIT), place)


def test_each_id_is_begun_again_and_aborts_a_transaction(stage: Finisher) -> None:
    """One client for each; without a place it does no more than begin."""
    fence("b", "a")
    assert stage.opened == ["a", "b"]
    assert stage.calls == ABORTED * 2
    fence("c", place=None)
    assert stage.calls == [*ABORTED * 2, "init"]


def test_a_denied_call_is_logged_and_fencing_goes_on(stage: Finisher) -> None:
    """The former producer is fenced all the same, and no transaction is left open."""
    stage.script["send"] = deque([DENIED])
    with capture_logs() as logs:
        fence("a")
    assert stage.calls == ABORTED
    assert [(entry["event"], entry["transactional_id"]) for entry in logs] == [
        ("pending_offsets_not_cleared", "a"),
        ("producer_fenced", "a"),
    ]
    assert logs[0]["error"] == "may not read the group"


@pytest.mark.parametrize("call", ["begin", "send", "abort"])
def test_another_owner_that_does_the_same_is_let(stage: Finisher, call: str) -> None:
    """It began anew under the id after us: ours is shut out as well, which does no harm."""
    stage.script[call] = deque([FENCED])
    fence("a")
    assert stage.calls == ABORTED[: ABORTED.index(call) + 1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("init", REFUSED, "'a' cannot be fenced"),
        ("send", TIMED_OUT, "in group group is not finished"),
        ("abort", TIMED_OUT, "is not finished"),
    ],
)
def test_a_call_that_failed_is_an_error(
    stage: Finisher, call: str, error: KafkaError, message: str
) -> None:
    """The caller fences again, and partitions wait until no offset is in doubt."""
    stage.script[call] = deque([error])
    with pytest.raises(OffsetStoreError, match=message):
        fence("a")
    fence("a")
    assert stage.calls[-len(ABORTED) :] == ABORTED


@pytest.mark.parametrize(
    ("decided", "stable", "calls"),
    [
        (Decided({OFFSETS: Decision.COMMIT}, Decision.NONE), False, COMMITTED),
        (Decided({OFFSETS: Decision.COMMIT}, Decision.NONE), True, ["init"]),
        (Decided({}, Decision.COMMIT), False, COMMITTED),
        (Decided({OFFSETS: Decision.ABORT}, Decision.COMMIT), False, ABORTED),
        (Decided({OUT: Decision.COMMIT}, Decision.NONE), False, ABORTED),
        (Decided({OUT: Decision.COMMIT}, Decision.UNKNOWN), True, ["init"]),
    ],
)
def test_offsets_in_doubt_are_finished_as_it_was_decided(
    stage: Finisher, brokers: Brokers, decided: Decided, *, stable: bool, calls: list[str]
) -> None:
    """A commit by a commit and only where it is needed, anything else by an abort."""
    brokers.decided, brokers.stable = decided, stable
    fence("a")
    assert stage.calls == calls


def test_offsets_of_which_the_decision_is_unknown_are_left_in_doubt(
    stage: Finisher, brokers: Brokers
) -> None:
    """An outcome is not guessed; the error names the command that settles it."""
    brokers.decided, brokers.stable = Decided({}, Decision.UNKNOWN), False
    with pytest.raises(OffsetStoreError, match="headrace transactions settle"):
        fence("a")
    assert stage.calls == ["init"]


@pytest.mark.parametrize("stable", [True, False])
def test_without_the_right_to_read_the_log_only_a_doubt_stops_a_takeover(
    stage: Finisher, brokers: Brokers, *, stable: bool
) -> None:
    """It is said in either case."""
    brokers.refused, brokers.stable = KafkaAccessError("may not read"), stable
    with capture_logs() as logs:
        if stable:
            fence("a")
        else:
            with pytest.raises(OffsetStoreError, match="transaction_log_unreadable"):
                fence("a")
    assert logs[0]["event"] == "transaction_log_unreadable"
    assert stage.calls == ["init"]


def test_a_group_that_does_not_answer_is_not_sent_a_commit(
    stage: Finisher, brokers: Brokers
) -> None:
    """One that was begun and not ended would be aborted, and what was decided with it."""
    brokers.decided = Decided({OFFSETS: Decision.COMMIT}, Decision.NONE)
    brokers.stable = brokers.answers = False
    with pytest.raises(OffsetStoreError, match="coordinator does not answer"):
        fence("a")
    assert stage.calls == ["init"]


def test_a_commit_that_fails_to_finish_is_never_aborted(stage: Finisher, brokers: Brokers) -> None:
    """The error has it tried again, from the beginning."""
    brokers.decided, brokers.stable = Decided({}, Decision.COMMIT), False
    stage.script["commit"] = deque([TIMED_OUT])
    with pytest.raises(OffsetStoreError, match="not be finished by a commit"):
        fence("a")
    assert stage.calls == COMMITTED


def test_topics_are_finished_as_it_was_decided_of_each(stage: Finisher, brokers: Brokers) -> None:
    """Those that are held back for good, each by an empty record; the offsets before them."""
    other, free = TopicPartition("state", 0), TopicPartition("state", 1)
    brokers.decided = Decided(
        {
            OFFSETS: Decision.COMMIT,
            OUT: Decision.COMMIT,
            other: Decision.ABORT,
            free: Decision.COMMIT,
        },
        Decision.NONE,
    )
    brokers.stable, brokers.held = False, {OUT: Hold(1, 2), other: Hold(1, 2)}
    with capture_logs() as logs:
        fence("a")
    assert stage.calls == [
        *COMMITTED,
        *["begin", "produce", "flush", "commit"],
        *["begin", "produce", "flush", "abort"],
    ]
    assert stage.produced == [OUT, other]
    finished = [each for each in logs if each["event"] == "transaction_finished"]
    assert [(each["decision"], each.get("partitions")) for each in finished] == [
        ("commit", None),
        ("commit", ["out-3"]),
        ("abort", ["state-0"]),
    ]


def row(key: bytes, value: bytes | None) -> SimpleNamespace:
    """Return a record of a changelog."""
    return SimpleNamespace(
        key=lambda: key, value=lambda: value, headers=list, timestamp=lambda: (1, 5)
    )


def test_a_decided_commit_is_stored_once_more_before_the_transaction_that_finishes_it(
    stage: Finisher, brokers: Brokers
) -> None:
    """Offsets and changelog rows are stored in one transaction of another id."""
    state = TopicPartition("state", 0)
    decided = dict.fromkeys([OFFSETS, OUT, state], Decision.COMMIT)
    brokers.decided = Decided(decided, Decision.NONE)
    brokers.stable, brokers.held = False, {OUT: Hold(1, 2), state: Hold(1, 2)}
    brokers.sent = {PLACE.partition: SentOffset(9, -1, "")}
    brokers.rows = [row(b"k", b"1"), row(FINISHED_KEY + b"a", None), row(b"k", None)]
    fence("a", place=replace(PLACE, changelogs=frozenset({"state"})))
    assert stage.opened == ["a", "a.again"]
    assert stage.calls == [
        *["init", "init", "begin", "produce", "produce", "flush", "send", "commit"],
        *["begin", "send", "commit"],
        *["begin", "produce", "produce", "flush", "commit"],
    ]
    assert stage.produced == [state, state, OUT, state]


@pytest.mark.parametrize("failing", ["begin", "send", "commit"])
def test_a_transaction_whose_copy_failed_is_not_finished(
    stage: Finisher, brokers: Brokers, failing: str
) -> None:
    """Held records stay held, and the next try begins from the beginning."""
    brokers.decided = Decided({OFFSETS: Decision.COMMIT}, Decision.NONE)
    brokers.stable = False
    brokers.sent = {PLACE.partition: SentOffset(9, -1, "")}
    stage.script[failing] = deque([TIMED_OUT])
    with pytest.raises(OffsetStoreError, match="could not be stored once more"):
        fence("a")
    assert stage.calls.count("begin") == 1


def test_offsets_of_a_topic_that_is_gone_are_not_stored_once_more(
    stage: Finisher, brokers: Brokers
) -> None:
    """They are of no use; the takeover goes on."""
    brokers.decided = Decided({OFFSETS: Decision.COMMIT}, Decision.NONE)
    brokers.stable = False
    brokers.sent = {PLACE.partition: SentOffset(9, -1, "")}
    stage.script["send"] = deque([KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no topic")])
    with capture_logs() as logs:
        fence("a")
    assert "decided_commit_stored_once" in [each["event"] for each in logs]
    assert stage.calls.count("commit") == 1


def test_one_that_was_ended_while_it_stored_a_commit_once_more_holds_nothing_back(
    stage: Finisher, brokers: Brokers
) -> None:
    """It is shut out, and then what it was about is finished."""
    brokers.decided = Decided({OUT: Decision.COMMIT}, Decision.NONE)
    brokers.held = {OUT: Hold(1, 2, going_on=("a.again",))}
    brokers.coming = {OUT: Hold(1, 2)}
    fence("a")
    assert stage.opened == ["a", "a.again"]
    assert stage.produced == [OUT]
