"""From an exported file to a plan, or to every reason why it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.offsets.errors import RequestError
from headrace.offsets.planning import Plan, change_to
from headrace.records import kafkas_topic_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config.subscription import Subscription
    from headrace.offsets.document import OffsetsDocument
    from headrace.offsets.reading import Cluster, PartitionOffsets
    from headrace.records import TopicPartition


def partitions_of(
    document: OffsetsDocument, subscription: Subscription, cluster: Cluster
) -> list[TopicPartition]:
    """Return the partitions that a file is about, once all of them are the channel's.

    Raises:
        RequestError: with every reason why the file is not for this channel and cluster.
    """
    problems = [
        *_cluster_problems(document, cluster),
        *(p for topic in document.topic_ids for p in _topic_problems(document, topic, cluster)),
    ]
    problems += [
        f"topic {topic} is not of this channel, which reads {subscription}; remove it from "
        "the file, or import with the channel that reads it"
        for topic in document.topic_ids
        if not subscription.covers(topic)
    ]
    if problems:
        raise RequestError(problems)
    return sorted(document.offsets)


def _cluster_problems(document: OffsetsDocument, cluster: Cluster) -> list[str]:
    if document.cluster in {None, cluster.id}:
        return []
    problem = (
        f"the offsets are of cluster {document.cluster}, not of {cluster.id}, and mean other "
        "records here; if they do fit, remove the line cluster and the lines id from the file"
    )
    return [problem]


def _topic_problems(document: OffsetsDocument, topic: str, cluster: Cluster) -> list[str]:
    info = cluster.topics.get(topic)
    if info is None:
        return [
            f"topic {topic} does not exist on the brokers; create it, or remove it from the file"
        ]
    problems = [
        f"topic {topic} has no partition {p.partition}; it has {info.partitions}, from 0 on"
        for p in document.offsets
        if p.topic == topic and p.partition >= info.partitions
    ]
    wanted = document.topic_ids[topic]
    if wanted is not None and kafkas_topic_id(wanted) != kafkas_topic_id(info.topic_id):
        problems.append(
            f"topic {topic} was created again since the export (it had the id {wanted}, now "
            f"{info.topic_id}), so offsets mean other records; if they do fit, remove the line id "
            "from the file"
        )
    return problems


def plan_import(document: OffsetsDocument, found: Sequence[PartitionOffsets]) -> Plan:
    """Return what an import does.

    Raises:
        RequestError: the brokers do not have some of the offsets.
    """
    problems = [
        f"{offsets.partition}: offset {wanted} is outside of what the brokers have, "
        f"{offsets.low} to {offsets.high}; correct it in the file, or remove it there and use reset"
        for offsets in found
        if not offsets.low <= (wanted := document.offsets[offsets.partition]) <= offsets.high
    ]
    if problems:
        raise RequestError(problems)
    return tuple(change_to(o, document.offsets[o.partition]) for o in found)
