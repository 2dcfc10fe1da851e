"""Questions whether logs still lead to positions, with a client that answers as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.kafka import truncation
from headrace.kafka.truncation import DOUBT_INTERVAL, TURNOVER, LogQuestions
from headrace.records import TopicPartition
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
    assert questions.hear(0) == []
    FakeConsumer.sound = frozenset({P1})
    questions.ask(P1, 20, 4)
    questions.hear(0)
    assert questions.whole == set()
    clock.advance(TURNOVER)
    assert questions.hear(0) == []
    assert questions.whole == {P1}
    assert [client.closed for client in clients] == [True, False]
    assert clients[1].asked == {P0: (10, 3)}
    FakeConsumer.sound = frozenset({P0})
    questions.hear(0)
    assert questions.whole == {P0, P1}
    assert clients[1].closed


def test_a_client_keeps_its_questions_while_no_other_waits(clients: list[FakeConsumer]) -> None:
    """However long that takes: it asks again by itself."""
    FakeConsumer.sound = frozenset()
    clock = FakeClock()
    questions = LogQuestions({}, "g", clock)
    questions.ask(P0, 10, 3)
    for _ in range(3):
        questions.hear(0)
        clock.advance(TURNOVER)
    assert [client.closed for client in clients] == [False]
    questions.close()
    assert clients[0].closed


def test_what_is_in_doubt_for_long_is_told_once_in_a_while(clients: list[FakeConsumer]) -> None:
    """With the first one's name and how many there are, whether it was put already or waits."""
    FakeConsumer.sound = frozenset()
    clock = FakeClock()
    questions = LogQuestions({}, "g", clock)
    questions.ask(P0, 10, 3)
    questions.ask(P1, 20, 3)
    questions.hear(0)
    clock.advance(DOUBT_INTERVAL)
    questions.ask(P2, 5, 3)
    (told,) = questions.hear(0)
    assert told.startswith("events-0 and 1 more: for 30 s or longer no leader has said")
    assert questions.hear(0) == []
    questions.forget([P0])
    clock.advance(DOUBT_INTERVAL)
    (told,) = questions.hear(0)
    assert told.startswith("events-1 and 1 more: ")
    assert [client.closed for client in clients[:-1]] == [True] * (len(clients) - 1)
