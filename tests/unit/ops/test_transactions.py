"""Whose a transactional producer is, and which transactions hang."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.group_nodes import GroupNodes, ParsedNode
from headrace.coordinators.member_info import MemberInfo
from headrace.coordinators.znodes import EpochDocument, MemberDocument, OwnerDocument
from headrace.core.errors import UsageError
from headrace.core.records import TopicPartition
from headrace.kafka.transaction_log import LoggedTransaction, TransactionState
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.ops.transactions.commands import (
    FoundTransaction,
    is_of_group,
    owner_of,
    require_decided,
    require_hanging,
    require_settled,
)
from headrace.zookeeper.nodes import NodeStat

if TYPE_CHECKING:
    from headrace.core.errors import HeadraceError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
STAT = NodeStat(version=0, czxid=1, owner_session=None)


def nodes(
    members: tuple[str, ...] = ("a.b",),
    owners: dict[TopicPartition, str] | None = None,
    ids: dict[TopicPartition, str] | None = None,
) -> GroupNodes:
    """Return a group's nodes: who runs, who owns what, and the producers that claims name."""
    info = MemberInfo(frozenset({"t"}))
    document = MemberDocument(info, "mill", 11, 0.0, "0.1")
    return GroupNodes(
        {name: ParsedNode(document, None, STAT) for name in members},
        {
            partition: ParsedNode(OwnerDocument(name, 1, 1, "mill", 0.0), None, STAT)
            for partition, name in (owners or {}).items()
        },
        {
            partition: ParsedNode(EpochDocument(1, "x", 1, name, clean_end=False), None, STAT)
            for partition, name in (ids or {}).items()
        },
    )


@pytest.mark.parametrize(
    ("found", "owner"),
    [
        (nodes(owners={P0: "a.b"}, ids={P0: "headrace.g.a.b.7"}), "a.b at mill (pid 11)"),
        # the member runs, and may have begun with this producer just now
        (nodes(), "a.b at mill (pid 11)"),
        # it runs with another one
        (nodes(owners={P0: "a.b"}, ids={P0: "headrace.g.a.b.9"}), None),
        # the claim is over
        (nodes(members=(), ids={P0: "headrace.g.a.b.7"}), None),
        # another member has the partition, whose claim names a producer of its own
        (nodes(members=("c",), owners={P0: "c"}, ids={P0: "headrace.g.c.1"}), None),
        # one partition says so, another does not
        (
            nodes(
                owners={P0: "a.b", P1: "a.b"},
                ids={P0: "headrace.g.a.b.9", P1: "headrace.g.a.b.7"},
            ),
            "a.b at mill (pid 11)",
        ),
    ],
)
def test_the_owner_is_a_member_that_runs(found: GroupNodes, owner: str | None) -> None:
    """The owner is found by the claims that name the producer, else by the producer's name."""
    assert owner_of("headrace.g.a.b.7", "g", found) == owner


@pytest.mark.parametrize(
    ("name", "of_group"),
    [
        ("headrace.g.a.b.7", True),
        ("headrace.g.h.a.7", False),
        ("headrace.g2.a.7", False),
        ("mine", False),
    ],
)
def test_a_producer_is_of_the_group_with_the_longest_name(name: str, of_group: bool) -> None:
    """A producer of a group whose name begins with another's belongs to the former."""
    assert is_of_group(name, "g", ["g.h", "g", "other"]) is of_group


OPEN = FoundTransaction(
    LoggedTransaction("headrace.g.a.7", TransactionState.ONGOING, 1, 2, 15_000, 0, 0, (P0,)),
    is_ours=True,
    owner=None,
    age=20.0,
)


def test_only_a_hanging_transaction_is_aborted_unforced() -> None:
    """A running member's, a closed one, and another program's are refused."""
    require_hanging(OPEN)
    cases: list[tuple[FoundTransaction, type[HeadraceError], str]] = [
        (replace(OPEN, owner="a at mill"), ChannelRunningError, "running member a at mill"),
        (replace(OPEN, is_ours=False), UsageError, "no producer of the channel's group"),
        (
            replace(OPEN, logged=replace(OPEN.logged, state=TransactionState.COMPLETE_COMMIT)),
            UsageError,
            "is complete commit; say --force",
        ),
    ]
    for found, kind, text in cases:
        with pytest.raises(kind, match=text):
            require_hanging(found)


def test_only_a_decided_transaction_is_settled_unforced() -> None:
    """One that brokers are at, a running member's, and another program's are refused."""
    done = replace(OPEN, logged=replace(OPEN.logged, state=TransactionState.COMPLETE_COMMIT))
    marking = replace(OPEN, logged=replace(OPEN.logged, state=TransactionState.PREPARE_COMMIT))
    require_settled(done)
    cases: list[tuple[FoundTransaction, type[HeadraceError], str]] = [
        (marking, UsageError, "is prepare commit: the brokers are marking"),
        (replace(done, owner="a at mill"), ChannelRunningError, "running member a at mill"),
        (replace(done, is_ours=False), UsageError, "no producer of the channel's group"),
    ]
    for found, kind, text in cases:
        with pytest.raises(kind, match=text):
            require_settled(found)


@pytest.mark.parametrize("state", TransactionState)
def test_an_open_transaction_is_never_settled(state: TransactionState) -> None:
    """An open transaction is not decided, whoever has it; others have nothing to be aborted."""
    found = replace(OPEN, logged=replace(OPEN.logged, state=state))
    if state is not TransactionState.ONGOING:
        require_decided(found)
        return
    for each in (found, replace(found, is_ours=False), replace(found, owner="a at mill")):
        with pytest.raises(UsageError, match="transactions abort ends it"):
            require_decided(each)


def test_one_past_its_time_out_is_overdue() -> None:
    """The brokers abort it about then; one that has ended is not."""
    assert OPEN.is_overdue
    assert not replace(OPEN, age=10.0).is_overdue
    ended = replace(OPEN.logged, state=TransactionState.COMPLETE_ABORT)
    assert not replace(OPEN, logged=ended).is_overdue
