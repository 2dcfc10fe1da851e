"""One ZooKeeper server that a group depends on: stopped too long, wiped, and not there yet."""

from __future__ import annotations

import shutil
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from headrace.clock import Deadline
from headrace.kafka.ports import StoredOffset
from headrace.local.zookeeper import ZooKeeperServer
from tests.integration.channel.rig import WAIT, Group, Notes, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that is not started."""
    server = ZooKeeperServer(tmp_path / "zookeeper")
    yield server
    server.kill()


def test_a_server_that_is_away_for_longer_than_the_session_costs_the_claims_only(
    server: ZooKeeperServer, make_group: Callable[..., Group]
) -> None:
    """Everything is given up when the lease ends, and claimed anew from what was committed."""
    server.start(Deadline.after(WAIT))
    group, numbers = make_group(server.address, 2), (0, 1)
    group.produce(10, *numbers)
    notes = Notes()
    with group.running(notes):
        eventually(lambda: group.offsets(*numbers) == [10, 10])
        server.kill()
        notes.wait(lambda: all(calls[-1] == "lost" for calls in notes.callbacks.values()))
        group.produce(10, *numbers, start=10)
        assert notes.values.total() == 20
        server.start(Deadline.after(WAIT))
        eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 2)] * 2)
    assert list(notes.epochs.values()) == [[1, 2], [1, 2]]
    assert len(notes.values) == 40
    assert set(notes.values.values()) == {1}


def test_a_server_that_comes_back_empty_is_filled_again(
    server: ZooKeeperServer, make_group: Callable[..., Group]
) -> None:
    """The member makes the chroot and joins anew; the group's offsets keep the epochs rising."""
    server.start(Deadline.after(WAIT))
    group, numbers = make_group(server.address, 2), (0, 1)
    group.produce(10, *numbers)
    notes = Notes()
    document = group.document("a")
    document["zookeeper"]["chroot"] = "/head/race"
    controller = group.start(document, {"main": notes})
    eventually(lambda: group.offsets(*numbers) == [10, 10])
    server.kill()
    shutil.rmtree(server.directory / "data")
    server.start(Deadline.after(WAIT))
    notes.wait(lambda: all("lost" in calls for calls in notes.callbacks.values()))
    group.produce(10, *numbers, start=10)
    eventually(lambda: group.stored(*numbers) == [StoredOffset(20, 2)] * 2)
    assert controller.stop(Deadline.after(WAIT)).left == ()
    assert list(notes.epochs.values()) == [[1, 2], [1, 2]]
    assert len(notes.values) == 40
    assert set(notes.values.values()) == {1}


def test_a_start_waits_for_a_server_that_is_not_there_yet(
    server: ZooKeeperServer, make_group: Callable[..., Group]
) -> None:
    """Within connect_timeout the start goes on by itself once the server answers."""
    group, notes = make_group(server.address), Notes()
    group.produce(5)
    controller = group.controller(notes)
    start = Thread(target=controller.start, args=[Deadline.after(WAIT)])
    start.start()
    server.start(Deadline.after(WAIT))
    start.join(WAIT)
    eventually(lambda: group.stored() == [StoredOffset(5, 1)])
    assert controller.stop(Deadline.after(WAIT)).left == ()
