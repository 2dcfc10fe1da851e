from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.subscription import Subscription
from headrace.core.errors import UsageError
from headrace.core.records import TopicPartition
from headrace.kafka.ports import TopicInfo
from headrace.ops.offsets.commands import OffsetsDocument
from headrace.ops.offsets.plan import partitions_of, plan_import
from headrace.ops.offsets.reader import Cluster, PartitionOffsets

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)
CLUSTER = Cluster("cluster-1", {"events": TopicInfo("events", "id-1", 2)})

DOCUMENT = OffsetsDocument(
    offsets={P0: 12, P1: 7},
    topic_ids={"events": "id-1"},
    cluster="cluster-1",
    group="group",
    exported="2013-01-01T05:00:00Z",
)


def problems(text: str) -> tuple[str, ...]:
    """Return what is wrong with a file."""
    with pytest.raises(UsageError) as refused:
        OffsetsDocument.parse(text, "file")
    return refused.value.problems


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.builds(TopicPartition, names, st.integers(0, 10_000)),
        st.integers(0, 2**63 - 1),
        max_size=5,
    ),
    names,
)
def test_an_export_is_read_back(offsets: dict[TopicPartition, int], name: str) -> None:
    """Names survive YAML unchanged."""
    document = OffsetsDocument(offsets, {p.topic: name for p in offsets}, name, name, name)
    assert OffsetsDocument.parse(document.dump(), "file") == document


def test_json_is_read_too() -> None:
    """Keys are texts there."""
    text = json.dumps(yaml.safe_load(DOCUMENT.dump()))
    assert OffsetsDocument.parse(text, "file") == DOCUMENT


def test_a_file_written_by_hand_may_leave_out_where_it_is_from() -> None:
    """The version and the offsets are enough."""
    text = "headrace_offsets: 1\ntopics: {events: {offsets: {0: 12}}}"
    found = OffsetsDocument.parse(text, "file")
    assert found == OffsetsDocument({P0: 12}, {"events": None})


def test_other_files_and_other_versions_are_refused() -> None:
    """With what to do about it, and without looking any further."""
    assert problems("a: [") == ("file (line 1): is neither YAML nor JSON",)
    assert problems("kafka: {}") == (
        "file: is no export of offsets: it has no key headrace_offsets",
    )
    (later,) = problems("headrace_offsets: 2\nnew: 1")
    assert later.startswith("file: has format version 2; this Headrace knows 1, so import it with")


def test_every_mistake_is_named() -> None:
    """Each with its place in the file."""
    text = """
headrace_offsets: 1
cluster: 5
colour: blue
topics:
  events: {id: 1, offsets: {0: -1, 1: true, x: 5, 2: "7"}, more: 1}
  other: 3
"""
    assert sorted(problems(text)) == [
        "file: cluster: 5 is not a text; put it in quotes",
        "file: colour: is not a known key",
        "file: topics.events.id: 1 is not a text; put it in quotes",
        "file: topics.events.more: is not a known key",
        "file: topics.events.offsets.0: -1 is not an offset",
        "file: topics.events.offsets.1: True is not an offset",
        "file: topics.events.offsets.2: '7' is not an offset",
        "file: topics.events.offsets: 'x' is not the number of a partition",
        "file: topics.other: is missing or not a mapping",
    ]


def test_a_file_that_fits_gives_its_partitions() -> None:
    """Also for another group of the same cluster, which is how offsets are copied."""
    assert partitions_of(DOCUMENT, Subscription(("^e",)), CLUSTER) == [P0, P1]


def test_an_earlier_version_s_file_fits() -> None:
    """Topic ids were exported in librdkafka's alphabet, and are compared in Kafka's."""
    found = Cluster("c", {"events": TopicInfo("events", "-0vHkN_QtyVv6cS6PqPz-w", 2)})
    document = OffsetsDocument({P0: 1}, {"events": "+0vHkN/QtyVv6cS6PqPz+w"})
    assert partitions_of(document, Subscription(("events",)), found) == [P0]


def test_a_file_from_elsewhere_is_refused() -> None:
    """Another cluster, a topic created again, topics and partitions that are not there."""
    document = OffsetsDocument(
        {P0: 1, TopicPartition("events", 2): 1, TopicPartition("gone", 0): 1},
        {"events": "id-0", "gone": None},
        "cluster-0",
    )
    with pytest.raises(UsageError) as refused:
        partitions_of(document, Subscription(("events",)), CLUSTER)
    wanted = ["cluster-0", "no partition 2", "created again", "gone does not exist", "gone is not"]
    assert len(refused.value.problems) == len(wanted)
    for problem, words in zip(refused.value.problems, wanted, strict=True):
        assert words in problem


def offsets(partition: TopicPartition, low: int, high: int) -> PartitionOffsets:
    """Return a partition without commits."""
    return PartitionOffsets(partition, "", low, high, None, None)


def test_offsets_outside_of_the_log_are_refused_together() -> None:
    """Offsets are not clamped: the message has those of the file and those of the log."""
    with pytest.raises(UsageError) as refused:
        plan_import(DOCUMENT, [offsets(P0, 13, 20), offsets(P1, 0, 6)])
    assert [problem.split(",")[0] for problem in refused.value.problems] == [
        "events-0: offset 12 is outside of what the brokers have",
        "events-1: offset 7 is outside of what the brokers have",
    ]


def test_an_import_moves_to_the_file_s_offsets() -> None:
    """The end of the log is within it."""
    plan = plan_import(DOCUMENT, [offsets(P0, 12, 20), offsets(P1, 0, 7)])
    assert [change.after for change in plan] == [12, 7]
