"""Requests to ZooKeeper of which no answer comes in time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from tests.integration.channel.rig import Group, Notes, eventually
from tests.integration.outages.cable import Cable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.coordinators.claims import Claim
    from headrace.core.records import TopicPartition
    from headrace.zookeeper.nodes import Operation
    from tests.integration.seen import Log


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Cable.mute, id="executed"),
        pytest.param(Cable.cut, id="executed-later", marks=pytest.mark.slow),
    ],
)
def test_a_claim_of_which_no_answer_came_is_cleared_and_made_again(
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    fault: Callable[[Cable], None],
) -> None:
    """The owner node that nobody's claim stands for is deleted, and no record is missing.

    The other partition goes on under its epoch.
    """
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.2)
    cable = Cable(int(zookeeper_hosts.rpartition(":")[2]))
    group = make_group(zookeeper_hosts, session_timeout=15)
    theirs = replace(group, zookeeper_hosts=cable.address)
    _before_claiming(monkeypatch, group.partition(1), lambda: fault(cable))
    notes = Notes()
    try:
        with theirs.running(notes):
            eventually(lambda: group.offsets() == [0])
            group.broker.add_partitions(group.topic, 2)
            log.says("coordination_suspended")
            cable.mend()
            log.expect("orphan_claim_found", partition=str(group.partition(1)))
            log.says("coordination_resumed")
            eventually(lambda: _takes(group))
            group.produce(5)
            eventually(lambda: group.offsets(0, 1) == [5, 1])
    finally:
        cable.close()
        theirs.close()
    assert notes.epochs == {group.partition(0): [1], group.partition(1): [2]}
    assert set(notes.values.values()) == {1}


def _before_claiming(
    monkeypatch: pytest.MonkeyPatch, partition: TopicPartition, function: Callable[[], None]
) -> None:
    """Call a function once, before the claim of a partition is sent."""
    prepare, waiting = ZooKeeperRegistry._claiming, [function]

    def claiming(
        nodes: ZooKeeperRegistry, claims: Collection[Claim], fresh: Collection[TopicPartition]
    ) -> list[list[Operation]]:
        operations = prepare(nodes, claims, fresh)
        if waiting and partition in {claim.partition for claim in claims}:
            waiting.pop()()
        return operations

    monkeypatch.setattr(ZooKeeperRegistry, "_claiming", claiming)


def _takes(group: Group) -> bool:
    """Whether the partition that was just added accepts a record."""
    try:
        group.produce(1, 1)
    except Exception:  # noqa: BLE001 - the client does not know the partition yet
        return False
    return True
