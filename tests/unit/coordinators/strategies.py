"""Groups of members and who owns what in them, as hypothesis draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from headrace.coordinators.member_info import MemberInfo
from headrace.core.records import TopicPartition, all_partitions

if TYPE_CHECKING:
    from collections.abc import Collection

Owners = dict[TopicPartition, str]

TOPICS = ("orders", "returns", "clicks.raw", "z")


def dynamic(topics: Collection[str], weight: int = 1) -> MemberInfo:
    """A member in dynamic mode."""
    return MemberInfo(frozenset(topics), weight=weight)


@st.composite
def groups(
    draw: st.DrawFn, members: int = 6, topics: int = 4, partitions: int = 12, weight: int = 1
) -> tuple[dict[str, MemberInfo], dict[str, int], Owners]:
    """Members that all subscribe to the same topics, and any distribution of the partitions."""
    counts = {
        topic: draw(st.integers(0, partitions)) for topic in TOPICS[: draw(st.integers(1, topics))]
    }
    names = [f"m{n}" for n in range(draw(st.integers(1, members)))]
    infos = {name: dynamic(counts, draw(st.integers(1, weight))) for name in names}
    holders = st.sampled_from([*names, None])
    drawn = {partition: draw(holders) for partition in all_partitions(counts)}
    return infos, counts, {p: holder for p, holder in drawn.items() if holder is not None}


@st.composite
def groups_in_tasks(
    draw: st.DrawFn, members: int = 5, topics: int = 3, partitions: int = 8, weight: int = 1
) -> tuple[dict[str, MemberInfo], dict[str, int], Owners]:
    """Members that work in tasks of the same topics, and any distribution of the partitions."""
    names = [f"m{n}" for n in range(draw(st.integers(1, members)))]
    count = draw(st.integers(0, partitions))
    counts = dict.fromkeys(TOPICS[: draw(st.integers(2, topics))], count)
    infos = {
        name: MemberInfo(frozenset(counts), weight=draw(st.integers(1, weight)), together=True)
        for name in names
    }
    # most tasks are with one member, or the examples would be all halves
    owners: Owners = {}
    holders = st.sampled_from([*names, None])
    for number in range(count):
        whole = draw(st.booleans())
        holder = draw(holders)
        for topic in counts:
            found = holder if whole else draw(holders)
            if found is not None:
                owners[TopicPartition(topic, number)] = found
    return infos, counts, owners
