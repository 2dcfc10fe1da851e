"""Commits whose metadata a later version of Headrace wrote, as an owner reads them."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from headrace.channel.commits import AcknowledgedOffsets, OffsetVerdict, judge
from headrace.core.records import TopicPartition
from headrace.kafka.offsets import METADATA_VERSION, entry, stored_in
from headrace.kafka.ports import StoredOffset

#: What we stored last: offset 10 under epoch 5.
OURS = AcknowledgedOffsets(offset=10, epoch=5, sequence=1, at=0.0)


def later(offset: int, **fields: object) -> StoredOffset | None:
    """Return what we read where a member of the next version committed."""
    metadata = json.dumps({"version": METADATA_VERSION + 1, "by": {"new": "shape"}, **fields})
    return stored_in(ClientPartition("events", 0, offset, metadata=metadata))


@pytest.mark.parametrize(
    ("epoch", "finding"),
    [(4, OffsetVerdict.STALE), (5, OffsetVerdict.LATE), (6, OffsetVerdict.SUPERSEDED)],
)
def test_epochs_are_compared_across_versions(epoch: int, finding: OffsetVerdict) -> None:
    """A later version's zombie is mended, and to a later version's new owner we give way."""
    assert judge(later(7, epoch=epoch), OURS, in_doubt=False) is finding


def test_a_commit_without_a_readable_epoch_is_another_programs() -> None:
    """Every version has to write its epoch, or the owner takes its commits for a stranger's."""
    for fields in ({}, {"epoch": "6"}, {"epoch": -1}):
        assert judge(later(7, **fields), OURS, in_doubt=False) is OffsetVerdict.FOREIGN


def test_the_later_version_understands_what_we_commit() -> None:
    """Version and epoch stand where every version looks for them."""
    ours = entry(TopicPartition("events", 0), StoredOffset(10, 5, "a"))
    assert ours.metadata is not None
    assert json.loads(ours.metadata) == {"version": METADATA_VERSION, "epoch": 5, "member": "a"}


def test_the_topic_is_an_added_key() -> None:
    """Members that do not know it find version, epoch and member where they were."""
    ours = entry(TopicPartition("events", 0), StoredOffset(10, 5, "a", "t"))
    assert ours.metadata is not None
    known = {"version": METADATA_VERSION, "epoch": 5, "member": "a"}
    assert json.loads(ours.metadata) == {**known, "topic_id": "t"}
