from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.records import TopicPartition
from headrace.kafka.offsets import entry, stored_in
from headrace.kafka.ports import StoredOffset
from tests.contracts.kafka import FOREIGN_METADATA

P = TopicPartition("events", 3)


def test_a_stored_offset_is_read_back() -> None:
    """Offset, epoch, member and topic come back as they were stored."""
    found = stored_in(entry(P, StoredOffset(7, 3, "a", "t" * 22)))
    assert found == StoredOffset(7, 3)
    assert found is not None
    assert (found.by, found.topic_id) == ("a", "t" * 22)


def test_the_longest_metadata_are_far_below_the_brokers_limit() -> None:
    """4 KiB is what a broker takes unless it is set to less."""
    name, most = "\N{GREEK SMALL LETTER MU}" * 249, 2**63 - 1
    longest = entry(P, StoredOffset(most, most, name, "t" * 22))
    assert len(longest.metadata or "") < 2048


@pytest.mark.parametrize("more", [{}, {"topic_id": None}, {"topic_id": 7}])
def test_metadata_without_a_topic_are_an_earlier_version_s(more: dict[str, object]) -> None:
    """The topic is not known, and the rest counts."""
    metadata = json.dumps({"version": 1, "epoch": 9, "member": "b", **more})
    found = stored_in(ClientPartition("events", 3, 11, metadata=metadata))
    assert found == StoredOffset(11, 9)
    assert found is not None
    assert (found.by, found.topic_id) == ("b", None)


@pytest.mark.parametrize(
    ("field", "stored"),
    [("topic_id", "+0vHkN/QtyVv6cS6PqPz+w"), ("topic_uuid", "-0vHkN_QtyVv6cS6PqPz-w")],
)
def test_a_topic_is_the_same_in_both_alphabets(field: str, stored: str) -> None:
    """Earlier versions wrote its id as librdkafka does; where that differs they find no id."""
    metadata = json.dumps({"version": 1, "epoch": 9, "member": "b", field: stored})
    found = stored_in(ClientPartition("events", 3, 11, metadata=metadata))
    assert found is not None
    assert not found.is_of_another("-0vHkN_QtyVv6cS6PqPz-w")
    again = json.loads(entry(P, found).metadata or "")
    assert (again.get("topic_uuid"), "topic_id" in again) == ("-0vHkN_QtyVv6cS6PqPz-w", False)


def test_a_leader_epoch_is_an_added_key() -> None:
    """It is read back; without one, and where it is none, it is not known."""
    stored = entry(P, StoredOffset(7, 3, "a", "t" * 22, 5))
    found = stored_in(stored)
    assert found is not None
    assert (found.leader_epoch, json.loads(stored.metadata or "")["leader_epoch"]) == (5, 5)
    for other in ({}, {"leader_epoch": "5"}, {"leader_epoch": -1}):
        metadata = json.dumps({"version": 1, "epoch": 9, "member": "b", **other})
        read = stored_in(ClientPartition("events", 3, 11, metadata=metadata))
        assert read is not None
        assert (read.epoch, read.leader_epoch) == (9, None)


def test_a_later_version_s_epoch_counts() -> None:
    """A former owner of an older version sees that it is superseded."""
    metadata = json.dumps({"version": 2, "epoch": 9, "member": ["b"], "more": {}})
    found = stored_in(ClientPartition("events", 3, 11, metadata=metadata))
    assert found == StoredOffset(11, 9)


@pytest.mark.parametrize("metadata", [*FOREIGN_METADATA, "x" * 4000, "[" * 4000])
def test_metadata_of_another_program_is_kept_for_the_log(metadata: str) -> None:
    """The epoch is absent, and the beginning of the text shows the writer."""
    found = stored_in(ClientPartition("events", 3, 11, metadata=metadata))
    assert found == StoredOffset(11, 0)
    assert found is not None
    assert found.by == metadata[:100]


def test_no_offset_is_none() -> None:
    """The client's marks for offsets that do not exist are none."""
    assert stored_in(ClientPartition("events", 3, -1001)) is None
