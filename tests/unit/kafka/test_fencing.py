"""What fencing makes of its producer's answers, with a producer that plays them."""

from __future__ import annotations

from collections import deque

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import transactional_producer
from headrace.kafka.ports import OffsetStoreError
from headrace.kafka.transactional_producer import GroupPartition, fence_producers
from tests.unit.kafka.test_transactional import FENCED, TIMED_OUT, Stage

PLACE = GroupPartition("group", TopicPartition("events", 0))
WAIT = 10.0

DENIED = KafkaError(
    KafkaError.GROUP_AUTHORIZATION_FAILED, "may not read the group", txn_requires_abort=True
)
ABORTED = ["init", "begin", "send", "abort"]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Producers that do as they are told."""
    stage = Stage()
    monkeypatch.setattr(transactional_producer, "Producer", stage.producer)
    return stage


def fence(*ids: str, place: GroupPartition | None = PLACE) -> None:
    """Shut producers out."""
    fence_producers({"bootstrap.servers": "nowhere"}, ids, Deadline.after(WAIT), place)


def test_each_id_is_begun_again_and_aborts_a_transaction(stage: Stage) -> None:
    """One client for each; without a place it does no more than begin."""
    fence("b", "a")
    assert stage.opened == ["a", "b"]
    assert stage.calls == ABORTED * 2
    fence("c", place=None)
    assert stage.calls == [*ABORTED * 2, "init"]


def test_what_the_user_may_not_do_is_said_and_passed(stage: Stage) -> None:
    """The former producer is shut out all the same, and nothing is left open."""
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
def test_another_owner_that_does_the_same_is_let(stage: Stage, call: str) -> None:
    """It began anew under the id after us: ours is shut out as well, which does no harm."""
    stage.script[call] = deque([FENCED])
    fence("a")
    assert stage.calls == ABORTED[: ABORTED.index(call) + 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [("init", "'a' cannot be fenced"), ("send", "in group group is not"), ("abort", "is not")],
)
def test_a_time_out_is_an_error(stage: Stage, call: str, message: str) -> None:
    """Whoever fences tries again: the partitions wait until nothing is in doubt any more."""
    stage.script[call] = deque([TIMED_OUT])
    with pytest.raises(OffsetStoreError, match=message):
        fence("a")
    fence("a")
    assert stage.calls[-len(ABORTED) :] == ABORTED
