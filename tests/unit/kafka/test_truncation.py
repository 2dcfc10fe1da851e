"""Questions whether logs still lead to positions, with a client that answers as it is told."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.core.records import TopicPartition
from headrace.kafka import truncation
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import LogLook
from headrace.kafka.truncation import (
    DOUBT_INTERVAL,
    LOOK_TIMEOUT,
    TURNOVER,
    LogLooks,
    LogQuestions,
)
from headrace.testing import FakeClock, FakeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import TopicPartition as ClientPartition

P0, P1, P2 = (TopicPartition("events", number) for number in range(3))


class Answer(FakeRecord):
    """A first record as the client hands it out."""

    def error(self) -> None:
        """Return that it is a record."""


class FakeConsumer:
    """A client whose partitions in ``sound`` are answered by a first record, others never."""

    sound: frozenset[TopicPartition] = frozenset()

    def __init__(self, properties: Mapping[str, object]) -> None:
        del properties
        self.asked: dict[TopicPartition, tuple[int, int]] = {}
        self.closed = False

    def incremental_assign(self, partitions: list[ClientPartition]) -> None:
        """Take questions."""
        for each in partitions:
            partition = TopicPartition(each.topic, each.partition)
            self.asked[partition] = (each.offset, each.leader_epoch)

    def incremental_unassign(self, partitions: list[ClientPartition]) -> None:
        """Drop questions."""
        for each in partitions:
            del self.asked[TopicPartition(each.topic, each.partition)]

    def consume(self, count: int, timeout: float) -> list[Answer]:
        """Answer."""
        del count, timeout
        answered = sorted(self.asked.keys() & self.sound)
        return [Answer(topic_=p.topic, partition_=p.partition) for p in answered]

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[FakeConsumer]:
    """All clients that are opened, the oldest first."""
    opened: list[FakeConsumer] = []

    def open_consumer(properties: Mapping[str, object]) -> FakeConsumer:
        opened.append(FakeConsumer(properties))
        return opened[-1]

    monkeypatch.setattr(truncation, "open_consumer", open_consumer)
    return opened


def test_a_question_without_an_answer_does_not_hold_up_later_ones(
    clients: list[FakeConsumer],
) -> None:
    """After a while both are asked together by another client, and each is answered by itself."""
    FakeConsumer.sound = frozenset()
    clock = FakeClock()
    questions = LogQuestions({}, "g", clock)
    questions.ask(P0, 10, 3)
    assert questions.poll(0) == []
    FakeConsumer.sound = frozenset({P1})
    questions.ask(P1, 20, 4)
    questions.poll(0)
    assert questions.whole == set()
    clock.advance(TURNOVER)
    assert questions.poll(0) == []
    assert questions.whole == {P1}
    assert [client.closed for client in clients] == [True, False]
    assert clients[1].asked == {P0: (10, 3)}
    FakeConsumer.sound = frozenset({P0})
    questions.poll(0)
    assert questions.whole == {P0, P1}
    assert clients[1].closed


def test_a_client_keeps_its_questions_while_no_other_waits(clients: list[FakeConsumer]) -> None:
    """The client repeats its question by itself, for any time."""
    FakeConsumer.sound = frozenset()
    clock = FakeClock()
    questions = LogQuestions({}, "g", clock)
    questions.ask(P0, 10, 3)
    for _ in range(3):
        questions.poll(0)
        clock.advance(TURNOVER)
    assert [client.closed for client in clients] == [False]
    questions.close()
    assert clients[0].closed


def test_a_long_doubt_is_reported_at_intervals(clients: list[FakeConsumer]) -> None:
    """The report has the first partition and the number of the others."""
    FakeConsumer.sound = frozenset()
    clock = FakeClock()
    questions = LogQuestions({}, "g", clock)
    questions.ask(P0, 10, 3)
    questions.ask(P1, 20, 3)
    questions.poll(0)
    clock.advance(DOUBT_INTERVAL)
    questions.ask(P2, 5, 3)
    (told,) = questions.poll(0)
    assert told.startswith("events-0 and 1 more: for 30 s or longer no leader has said")
    assert questions.poll(0) == []
    questions.forget([P0])
    clock.advance(DOUBT_INTERVAL)
    (told,) = questions.poll(0)
    assert told.startswith("events-1 and 1 more: ")
    assert [client.closed for client in clients[:-1]] == [True] * (len(clients) - 1)


class FakeAdmin:
    """An administrative client whose leaders have the epochs given, or a problem, or say nothing.

    ``led`` has what each is to answer, one after the other; the last one it repeats.
    """

    def __init__(self) -> None:
        self.led: dict[TopicPartition, list[Any]] = {}
        self.looked_up: list[str] = []

    def list_offsets(
        self, wanted: Mapping[ClientPartition, object], *, request_timeout: float
    ) -> dict[ClientPartition, Future[Any]]:
        """Answer at once."""
        assert request_timeout > 0
        ((asked, _),) = wanted.items()
        answer: Future[Any] = Future()
        answers = self.led.get(TopicPartition(asked.topic, asked.partition), [])
        if answers:
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(found, KafkaError):
                answer.set_exception(KafkaException(found))
            else:
                answer.set_result(SimpleNamespace(leader_epoch=found))
        return {asked: answer}

    def list_topics(self, topic: str, *, timeout: float) -> None:
        """Note it."""
        assert timeout > 0
        self.looked_up.append(topic)


@pytest.fixture
def admin() -> FakeAdmin:
    """Leaders that say nothing until they are told what."""
    return FakeAdmin()


def looks(admin: FakeAdmin, clock: FakeClock | None = None) -> LogLooks:
    """Return what asks these leaders."""
    return LogLooks({}, "g", admin, clock or FakeClock())  # type: ignore[arg-type]


def test_a_leader_of_before_answers_without_a_client(
    clients: list[FakeConsumer], admin: FakeAdmin
) -> None:
    """The leader does not know the epoch; a silent one delays no other answer."""
    admin.led = {P0: [3], P1: [-1]}
    asked = looks(admin)
    silent = asked.ask(P2, 5, 3)
    assert asked.ask(P0, 10, 3).result(0) == LogLook(3)
    assert asked.ask(P1, 10, 3).result(0) == LogLook(None)
    assert (silent.done(), clients) == (False, [])
    asked.close()
    assert silent.cancelled()


def test_logs_with_another_leader_are_looked_at_by_clients_that_end(
    clients: list[FakeConsumer], admin: FakeAdmin
) -> None:
    """The epoch of the present leader comes with the answer, and all clients are closed."""
    FakeConsumer.sound = frozenset({P0, P1})
    admin.led = {P0: [4], P1: [5]}
    asked = looks(admin)
    answers = [asked.ask(P0, 10, 3), asked.ask(P1, 20, 3)]
    assert [answer.result(10) for answer in answers] == [LogLook(4), LogLook(5)]
    asked.close()
    assert clients
    assert all(client.closed for client in clients)


def test_a_topic_whose_leaders_are_others_than_known_is_looked_up(admin: FakeAdmin) -> None:
    """The leader is asked once more then; what it says at last is what went wrong."""
    stale = KafkaError(KafkaError.FENCED_LEADER_EPOCH)
    admin.led = {P0: [stale, 3], P1: [stale]}
    clock = FakeClock()
    asked = looks(admin, clock)
    assert asked.ask(P0, 10, 3).result(10) == LogLook(3)
    assert admin.looked_up == ["events"]
    failing = asked.ask(P1, 10, 3)
    clock.advance(LOOK_TIMEOUT)
    assert isinstance(failing.exception(10), KafkaUnavailableError)
    asked.close()


def test_an_unanswered_look_fails(clients: list[FakeConsumer], admin: FakeAdmin) -> None:
    """The look fails in time, and its thread and client end."""
    FakeConsumer.sound = frozenset()
    admin.led = {P0: [4]}
    clock = FakeClock()
    asked = looks(admin, clock)
    answer = asked.ask(P0, 10, 3)
    clock.advance(LOOK_TIMEOUT)
    failure = answer.exception(10)
    assert isinstance(failure, KafkaUnavailableError)
    assert str(failure).startswith("whether the log of events-0 still leads to 10 is not known")
    asked.close()
    assert all(client.closed for client in clients)


def test_a_later_look_at_the_same_log_replaces_the_one_before(admin: FakeAdmin) -> None:
    """The earlier caller gets no answer to the later question."""
    asked = looks(admin)
    before = asked.ask(P0, 10, 3)
    admin.led = {P0: [3]}
    assert asked.ask(P0, 12, 3).result(0) == LogLook(3)
    assert before.cancelled()
    asked.close()


def test_a_client_that_cannot_be_made_fails_the_look(
    monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin
) -> None:
    """With the reason; the next look is asked all the same."""

    def refuse(properties: Mapping[str, object]) -> FakeConsumer:
        raise ValueError(f"no memory for {len(properties)} properties")

    monkeypatch.setattr(truncation, "open_consumer", refuse)
    admin.led = {P0: [4, 3]}
    asked = looks(admin)
    assert "ValueError: no memory" in str(asked.ask(P0, 10, 3).exception(10))
    assert asked.ask(P0, 10, 3).result(10) == LogLook(3)
    asked.close()
