"""The messages of commands to users without rights, on a broker that checks them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.errors import KafkaAccessError
from headrace.kafka.source import read_log
from headrace.kafka.transaction_log import TRANSACTION_LOG, TransactionLog
from headrace.ops.doctor.acls import Acl
from tests.guarded import WAIT, Guarded, guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["guarded"]

T = TypeVar("T")

pytestmark = pytest.mark.slow


def _says(command: Callable[[], object], *words: str) -> bool:
    """Whether a command is refused in these words: brokers take a moment to go by permissions."""

    def is_said() -> bool:
        try:
            command()
        except KafkaAccessError as error:
            return all(word in str(error) for word in words)
        return False

    return bool(wait_for(is_said, Deadline.after(WAIT)))


def _answers(command: Callable[[], T]) -> T | None:
    """Return what a command does once it may."""
    found: list[T] = []

    def is_done() -> bool:
        try:
            found.append(command())
        except KafkaAccessError:
            return False
        return True

    return found[0] if wait_for(is_done, Deadline.after(WAIT)) else None


def test_a_log_that_may_not_be_read_is_named_at_once(guarded: Guarded) -> None:
    """With the operation that is missing, and not after a minute."""
    topic = guarded.operator.create_topic(1)
    partition = TopicPartition(topic, 0)
    guarded.operator.produce(partition, b"1", b"2")

    def read() -> list[bytes | None]:
        return [each.value() for each in read_log(guarded.properties, "g", partition, 0, 2)]

    guarded.allow([Acl("topic", topic, ("Describe",))])
    assert _says(read, topic, "Read")
    guarded.allow([Acl("topic", topic, ("Read",))])
    assert _answers(read) == [b"1", b"2"]


def test_a_topic_that_may_not_be_seen_is_named(guarded: Guarded) -> None:
    """It is not taken for missing, nor the brokers for silent."""
    topic = guarded.operator.create_topic(1)
    guarded.allow([])
    catalog = KafkaTopicCatalog(guarded.properties, "g")
    try:
        assert _says(lambda: catalog.describe([topic], Deadline.after(WAIT)), topic, "Describe")
    finally:
        catalog.close()


def test_transactions_that_may_not_be_read_are_not_taken_for_none(guarded: Guarded) -> None:
    """The log's topic is named, with Describe and with Read, each while it is missing."""
    topic = guarded.operator.create_topic(1)
    guarded.operator.transact(TopicPartition(topic, 0), b"1")
    log = TransactionLog(guarded.properties)
    guarded.allow([])
    assert _says(log.transactions, TRANSACTION_LOG, "Describe")
    guarded.allow([Acl("topic", TRANSACTION_LOG, ("Describe",))])
    assert _says(log.transactions, TRANSACTION_LOG, "Read")
    guarded.allow([Acl("topic", TRANSACTION_LOG, ("Read",))])
    assert _answers(log.transactions)


def test_dead_letters_say_which_permission_is_missing(guarded: Guarded, tmp_path: Path) -> None:
    """For the topic, for the group that keeps what was replayed, and for the transactional id."""
    dead, source = guarded.operator.create_topic(1), guarded.operator.create_topic(1)
    guarded.operator.produce(TopicPartition(dead, 0), b"1")
    sasl = {"mechanism": "PLAIN", "username": "headrace", "password": "secret"}
    document: dict[str, Any] = {
        "kafka": {"bootstrap_servers": guarded.users, "sasl": sasl},
        "zookeeper": {"hosts": "127.0.0.1:1"},
        "state_dir": str(tmp_path),
        "channels": {
            "main": {
                "topics": [source],
                "group": "g",
                "processor": {"type": "simple", "deliver": "record"},
                "sink": "builtins:print",
                "rejects": {"failing": "dead_letter", "topic": dead},
            }
        },
    }
    file = tmp_path / "headrace.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")

    def says(*arguments: str, words: tuple[str, ...]) -> bool:
        def is_said() -> bool:
            result = CliRunner().invoke(app, ["dead-letters", *arguments, "-c", str(file)])
            return all(word in result.output for word in words)

        return bool(wait_for(is_said, Deadline.after(WAIT)))

    group = Acl("group", f"{dead}.replay", ("Read",))
    guarded.allow([group])
    assert says("list", words=(dead, "Describe"))
    guarded.allow([group, Acl("topic", dead, ("Describe",))])
    assert says("list", words=(dead, "operation Read"))
    guarded.allow([group, Acl("topic", dead, ("Read",))])
    assert says("list", words=("no record",))
    assert says(
        "replay", "--yes", words=(f"headrace.{dead}.replay", "may write to that transactional id")
    )
    guarded.allow([Acl("topic", dead, ("Read",))])
    assert says("list", words=(f"group {dead}.replay", "operation Read on the group"))
