"""One ZooKeeper server that a group depends on: stopped too long, wiped, and not there yet."""

from __future__ import annotations

import shutil
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.zookeeper import ZooKeeperServer
from headrace.kafka.ports import StoredOffset
from tests.integration.channel.rig import WAIT, Group, Notes, eventually
from tests.integration.seen import metric, suspended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.seen import Log


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that is not started."""
    server = ZooKeeperServer(tmp_path / "zookeeper")
    yield server
    server.kill()


@pytest.mark.slow
def test_a_server_that_is_away_for_longer_than_the_session_costs_the_claims_only(
    server: ZooKeeperServer, make_group: Callable[..., Group], log: Log
) -> None:
    """Everything is given up when the lease ends, and claimed anew from what was committed."""
    server.start()
    group, numbers = make_group(server.address, 2), (0, 1)
    group.produce(10, *numbers)
    notes = Notes()
    with group.running(notes) as controller:
        eventually(lambda: group.offsets(*numbers) == [10, 10])
        server.kill()
        eventually(lambda: suspended(controller) == 2)
        notes.wait(lambda: all(calls[-1] == "lost" for calls in notes.callbacks.values()))
        group.produce(10, *numbers, start=10)
        server.start()
        eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 2)] * 2)
        for number in numbers:
            where = {"topic": group.topic, "partition": number}
            assert metric(controller, "owner_epoch", **where) == 2
            log.expect("claim_lost", channel="main", reason="lease_over", **where)
            log.expect("partition_claimed", epoch=2, **where)
            came = dict.fromkeys(range(10), 1) | dict.fromkeys(range(10, 20), 2)
            assert notes.under[group.partition(number)] == came
    assert metric(controller, "claims_lost_total", reason="lease_over") == 2
    log.says("coordination_suspended", "coordination_restarted")
    log.expect("member_joined", member="a")
    assert list(notes.epochs.values()) == [[1, 2], [1, 2]]
    assert len(notes.values) == 40
    assert set(notes.values.values()) == {1}


@pytest.mark.slow
def test_a_server_that_comes_back_empty_is_filled_again(
    server: ZooKeeperServer, make_group: Callable[..., Group], log: Log
) -> None:
    """The member makes the chroot and joins anew; the group's offsets keep the epochs rising."""
    server.start()
    group, numbers = make_group(server.address, 2), (0, 1)
    group.produce(10, *numbers)
    notes = Notes()
    document = group.document("a")
    document["zookeeper"]["chroot"] = "/head/race"
    controller = group.start(document, {"main": notes})
    eventually(lambda: group.offsets(*numbers) == [10, 10])
    server.kill()
    shutil.rmtree(server.directory / "data")
    server.start()
    notes.wait(lambda: all("lost" in calls for calls in notes.callbacks.values()))
    group.produce(10, *numbers, start=10)
    eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 2)] * 2)
    assert controller.stop(Deadline.after(WAIT)).left == ()
    log.says("coordination_suspended", "claim_lost")
    assert len(log.of("member_joined")) == 2
    for number in numbers:
        log.expect("epoch_raised", partition=str(group.partition(number)), old=1, new=2)
    assert list(notes.epochs.values()) == [[1, 2], [1, 2]]
    assert len(notes.values) == 40
    assert set(notes.values.values()) == {1}


def test_a_start_waits_for_a_server_that_does_not_run_yet(
    server: ZooKeeperServer, make_group: Callable[..., Group]
) -> None:
    """Within connect_timeout the start goes on by itself once the server answers."""
    group, notes = make_group(server.address), Notes()
    group.produce(5)
    controller = group.controller(notes)
    start = Thread(target=controller.start, args=[Deadline.after(WAIT)])
    start.start()
    server.start()
    start.join(WAIT)
    eventually(lambda: group.stored() == [StoredOffset(5, 1)])
    assert controller.stop(Deadline.after(WAIT)).left == ()
