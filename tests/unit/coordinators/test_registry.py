from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from headrace.coordinators.claims import Release
from headrace.coordinators.errors import MembershipLostError
from headrace.coordinators.znodes import EpochDocument
from headrace.coordinators.zookeeper_registry import MOST_UNFENCED
from headrace.testing import InMemoryRegistry, InMemoryZooKeeper
from headrace.zookeeper.errors import ZooKeeperUnavailableError
from tests.contracts.members import GROUP, INFO, P0, PATHS, PRODUCER, World
from tests.contracts.registry import RegistryContract, claimed, lease, released


class InMemoryWorld:
    """A group in memory."""

    def __init__(self) -> None:
        self.zookeeper = InMemoryZooKeeper()
        self.hand = self.zookeeper.session()

    def member(self, name: str, *, transactional_prefix: str | None = None) -> InMemoryRegistry:
        """Return the access of a member."""
        return InMemoryRegistry(
            self.zookeeper, GROUP, name, transactional_prefix=transactional_prefix
        )

    def end_session(self, registry: object) -> None:
        """End a member's session; its client opens a new one, as kazoo does."""
        assert isinstance(registry, InMemoryRegistry)
        registry.session.expire()


class TestInMemoryRegistry(RegistryContract):
    """The contract in memory."""

    @pytest.fixture
    def world(self) -> World:
        """Return a group in memory."""
        return InMemoryWorld()


@pytest.fixture
def world() -> InMemoryWorld:
    """Return a group in memory."""
    return InMemoryWorld()


def test_a_suspended_session_is_unavailable(world: InMemoryWorld) -> None:
    """Without a connection every call says that there is no answer."""
    a = world.member("a")
    a.join(INFO)
    a.session.suspend()
    for call in (a.heartbeat, a.members, a.leave, lambda: a.claim([P0], lease())):
        with pytest.raises(ZooKeeperUnavailableError):
            call()


def test_a_heartbeat_goes_on_after_a_lost_answer(world: InMemoryWorld) -> None:
    """A heartbeat whose answer was lost does not look like another client's write."""
    a = world.member("a")
    a.join(INFO)
    a.session.lose_answers(1)
    with pytest.raises(ZooKeeperUnavailableError):
        a.heartbeat()
    a.heartbeat()


def test_joining_goes_on_after_a_lost_answer(world: InMemoryWorld) -> None:
    """A member node that our own lost request created is not taken for another holder's."""
    a = world.member("a")
    world.hand.ensure(PATHS.ids)
    a.session.lose_answers(1)
    with pytest.raises(ZooKeeperUnavailableError):
        a.join(INFO)
    assert world.hand.exists(PATHS.member("a")) is not None
    assert a.join(INFO).session_id == a.session.session_id


def test_raising_and_releasing_go_on_after_lost_answers(world: InMemoryWorld) -> None:
    """The second try recognises the first one's work."""
    a = world.member("a")
    a.join(INFO)
    claim = claimed(a, P0)
    a.session.lose_answers(1)
    with pytest.raises(ZooKeeperUnavailableError):
        a.raise_epoch(claim, 5)
    raised = a.raise_epoch(claim, 5)
    assert raised is not None
    a.session.lose_answers(1)
    with pytest.raises(ZooKeeperUnavailableError):
        released(a, raised, clean=True)
    assert released(a, raised, clean=True) is Release.RELEASED


def test_a_new_session_is_not_the_old_membership(world: InMemoryWorld) -> None:
    """After an expiry the member has to join again, though the client is connected."""
    a = world.member("a")
    a.join(INFO)
    a.session.expire()
    with pytest.raises(MembershipLostError):
        a.heartbeat()


def test_a_connection_that_breaks_after_reading_says_nothing_of_our_nodes(
    world: InMemoryWorld,
) -> None:
    """Our nodes are not taken for another client's while the session is unknown."""
    a = world.member("a")
    a.join(INFO)
    claim = claimed(a, P0)
    for call, readings in (
        (lambda: a.owners(P0.topic), 1),
        (lambda: a.verify([claim]), 2),
        (lambda: a.discard(P0), 2),
    ):
        a.session.suspend_after_reading(readings)
        with pytest.raises(ZooKeeperUnavailableError, match="broke after the node was read"):
            call()
        a.session.resume()
    assert a.verify([claim]) == []


def test_producers_that_are_too_many_to_name_are_logged(world: InMemoryWorld) -> None:
    """The next claim names the latest ones, and the log those that will not be fenced."""
    first, second = (
        world.member(name, transactional_prefix=PRODUCER + name) for name in ("a", "b")
    )
    first.join(INFO)
    second.join(INFO)
    claim = claimed(first, P0)
    released(first, claim, clean=True)
    path = PATHS.epoch(P0)
    named = tuple(f"{PRODUCER}former.{number}" for number in range(MOST_UNFENCED + 2))
    former = EpochDocument.decode(path, world.hand.get(path).data)
    world.hand.set(path, replace(former, unfenced=named).encode())
    with capture_logs() as logs:
        assert claimed(second, P0).unfenced == named[2:]
    (dropped,) = [entry for entry in logs if entry["event"] == "unfenced_producers_dropped"]
    assert dropped["transactional_ids"] == list(named[:2])
    assert dropped["partition"] == str(P0)


def test_producers_of_other_programs_are_not_shut_out(world: InMemoryWorld) -> None:
    """An id outside of the group is refused in each node, and does not come again.

    Otherwise a client that may write to ZooKeeper could fence any producer of the cluster.
    """
    first, second, third = (
        world.member(name, transactional_prefix=PRODUCER + name) for name in ("a", "b", "c")
    )
    for member in (first, second, third):
        member.join(INFO)
    released(first, claimed(first, P0), clean=False)
    path = PATHS.epoch(P0)
    former = EpochDocument.decode(path, world.hand.get(path).data)
    named = (PRODUCER + "old.1", "headrace.others.a.1")
    tampered = replace(former, transactional_id="payments", unfenced=named)
    world.hand.set(path, tampered.encode())
    with capture_logs() as logs:
        claim = claimed(second, P0)
    assert claim.unfenced == named[:1]
    assert claim.former_producers == named[:1]
    assert claim.previous is not None
    assert not claim.previous.clean_end
    (refused,) = [entry for entry in logs if entry["event"] == "transactional_ids_refused"]
    assert (refused["path"], refused["transactional_ids"]) == (path, ["payments", named[1]])
    assert EpochDocument.decode(path, world.hand.get(path).data).unfenced == named[:1]
