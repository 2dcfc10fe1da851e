"""The topics of an executor: what needs no broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.apps.workflow import topics as module
from headrace.apps.workflow.topics import Topics, create_topics
from headrace.core.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.clock import Deadline
    from headrace.kafka.catalog import NewTopic

_OTHERS = ("assignments", "results", "outcomes", "dead")


class SlowBrokers:
    """Brokers that know of a topic a few looks after it was created; ``old`` is there already."""

    def __init__(self, *_: Any) -> None:
        self.created: list[str] = []
        self.looks = 0

    def create(self, wanted: NewTopic, deadline: Deadline) -> bool:
        """Create a topic."""
        del deadline
        if wanted.name == "old":
            return False
        self.created.append(wanted.name)
        return True

    def describe(self, names: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Say which are known: one more with each look."""
        del deadline
        self.looks += 1
        return dict.fromkeys(names[: self.looks], "known")

    def close(self) -> None:
        """Hold nothing."""


def test_topics_are_created_when_brokers_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads them next finds them; one that was there is not waited for."""
    brokers = SlowBrokers()
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: brokers)
    made = create_topics({}, Topics("old"), partitions=1, assignments=1)
    assert made == brokers.created == [f"old.{name}" for name in _OTHERS]
    assert brokers.looks == len(made)


def test_topics_that_brokers_do_not_come_to_know_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the time for their answer is over."""
    brokers = SlowBrokers()
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: brokers)
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.0)
    with pytest.raises(KafkaUnavailableError, match=r"topic flow.* was created and is not there"):
        create_topics({}, Topics("flow"), partitions=1, assignments=1)
