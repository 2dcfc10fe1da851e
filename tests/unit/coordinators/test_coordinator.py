from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import DynamicCoordinatorConfig
from headrace.coordinators import rebalance
from headrace.coordinators.claims import LossReason
from headrace.coordinators.coordinator import Coordinator
from headrace.coordinators.member_info import MemberInfo, MemberState
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import FatalError, HeadraceError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.testing import InMemoryRegistry, InMemoryZooKeeper
from headrace.zookeeper.errors import AccessDeniedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace.coordinators.claims import Claim
    from headrace.coordinators.lease import Lease
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.coordinators.registry import Membership

INFO = MemberInfo(frozenset({"orders"}))
SETTINGS = DynamicCoordinatorConfig(rebalance_delay="20ms", resync_interval="30s")
PATHS = GroupPaths("group")
WAIT = 10.0


class Inbox:
    """A listener that enqueues, as a channel does."""

    def __init__(self) -> None:
        self.claims: queue.Queue[Claim] = queue.Queue()
        self.requests: queue.Queue[Claim] = queue.Queue()
        self.losses: queue.Queue[tuple[Claim, LossReason]] = queue.Queue()
        self.raises: queue.Queue[tuple[Claim, Claim]] = queue.Queue()
        self.states: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[HeadraceError] = queue.Queue()

    def claimed(self, claim: Claim) -> None:
        """Enqueue."""
        self.claims.put(claim)

    def release_requested(self, claim: Claim) -> None:
        """Enqueue."""
        self.requests.put(claim)

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """Enqueue."""
        self.losses.put((claim, reason))

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        """Enqueue."""
        self.raises.put((old, new))

    def suspended(self) -> None:
        """Enqueue."""
        self.states.put("suspended")

    def resumed(self) -> None:
        """Enqueue."""
        self.states.put("resumed")

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """Ignore the event, on which no test depends."""

    def failed(self, error: HeadraceError) -> None:
        """Enqueue."""
        self.errors.put(error)


class Running:
    """A coordinator on its thread, with its registry and its inbox."""

    def __init__(self, zookeeper: InMemoryZooKeeper, name: str = "a", partitions: int = 2) -> None:
        self.registry = InMemoryRegistry(zookeeper, member=name)
        self.inbox = Inbox()
        self.coordinator = Coordinator(self.registry, self.inbox, INFO, SETTINGS)
        self.coordinator.set_partitions({"orders": partitions})
        self.coordinator.start()

    def take(self, number: int) -> list[Claim]:
        """Wait for so many claims."""
        return [self.inbox.claims.get(timeout=WAIT) for _ in range(number)]


@pytest.fixture
def zookeeper() -> InMemoryZooKeeper:
    """Return a store in memory."""
    return InMemoryZooKeeper()


@pytest.fixture
def running(zookeeper: InMemoryZooKeeper) -> Iterator[Running]:
    """Return a coordinator that is stopped after the test."""
    running = Running(zookeeper)
    yield running
    running.coordinator.stop(Deadline.after(0.05))


def test_settings_from_before_the_start_are_published_with_the_join(
    zookeeper: InMemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other members never see a member without topics, and move no partition twice."""
    registry = InMemoryRegistry(zookeeper, member="a")
    joined: queue.Queue[MemberInfo] = queue.Queue()
    join = registry.join

    def noted(info: MemberInfo) -> Membership:
        joined.put(info)
        return join(info)

    monkeypatch.setattr(registry, "join", noted)
    coordinator = Coordinator(registry, Inbox(), MemberInfo(frozenset()), SETTINGS)
    coordinator.update(INFO)
    coordinator.start()
    assert joined.get(timeout=WAIT).topics == INFO.topics
    assert coordinator.stop(Deadline.after(WAIT)) == ()


def test_stop_waits_for_what_the_channel_gives_back(running: Running) -> None:
    """A stop asks for every claim, waits for the answers, leaves, and ends the thread."""
    claims = running.take(2)
    stopped: queue.Queue[tuple[Claim, ...]] = queue.Queue()
    stopper = threading.Thread(
        target=lambda: stopped.put(running.coordinator.stop(Deadline.after(WAIT)))
    )
    stopper.start()
    asked = [running.inbox.requests.get(timeout=WAIT) for _ in claims]
    assert asked == claims
    for claim in asked:
        running.coordinator.released(claim, clean=True)
    assert stopped.get(timeout=WAIT) == ()
    stopper.join(WAIT)
    assert running.coordinator.state is MemberState.LEFT
    assert running.registry.members().members == {}
    assert running.registry.owners("orders") == {}


def test_stop_ends_by_its_deadline_and_names_what_was_left(running: Running) -> None:
    """Claims that the channel keeps are lost and freed, and the stop returns them."""
    claims = running.take(2)
    assert set(running.coordinator.stop(Deadline.after(0.3))) == set(claims)
    assert {running.inbox.losses.get(timeout=WAIT)[1] for _ in claims} == {LossReason.STOPPED}
    assert running.registry.owners("orders") == {}


def test_a_stop_that_a_hung_coordinator_overruns_ends_the_lease(
    running: Running, zookeeper: InMemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller closes the session next, so that no claim may still be used."""
    claims = running.take(2)
    hung = threading.Event()
    monkeypatch.setattr(running.registry, "owners", lambda _topic: hung.wait(WAIT) and {})
    zookeeper.put(PATHS.ids, b"")
    assert set(running.coordinator.stop(Deadline.after(0.1))) == set(claims)
    assert not any(claim.lease.valid() for claim in claims)
    hung.set()


def test_turns_are_expected_only_while_it_runs(running: Running) -> None:
    """A running coordinator has a session's time for a turn; before and after, none is missed."""
    idle = Coordinator(running.registry, running.inbox, INFO, SETTINGS)
    assert idle.stall_timeout is None
    running.take(2)
    assert running.coordinator.stall_timeout == running.registry.session.session_timeout
    running.coordinator.stop(Deadline.after(0.05))
    assert wait_for(lambda: running.coordinator.stall_timeout is None, Deadline.after(WAIT))


def test_a_drained_member_stays_and_can_take_part_again(running: Running) -> None:
    """A drain returns what is not given back in time, and takes nothing new until it ends."""
    claims = running.take(2)
    assert set(running.coordinator.drain(Deadline.after(0.05))) == set(claims)
    for claim in claims:
        running.coordinator.released(claim, clean=True)
    assert running.coordinator.drain(Deadline.after(WAIT)) == ()
    assert running.coordinator.state is MemberState.ACTIVE
    running.coordinator.undrain()
    assert {claim.epoch for claim in running.take(2)} == {2}


def test_an_abandoned_claim_comes_again_after_the_delay(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abandoning frees the partition, and it is claimed again with a new epoch."""
    monkeypatch.setattr(rebalance, "RETRY_DELAY", 0.05)
    first = running.take(2)[0]
    running.coordinator.abandon(first)
    again = running.take(1)[0]
    assert (again.partition, again.epoch) == (first.partition, 2)


def test_a_raised_epoch_is_answered(running: Running) -> None:
    """The answer to a raise names the old claim and the new one."""
    first = running.take(2)[0]
    running.coordinator.raise_epoch(first, 10)
    old, new = running.inbox.raises.get(timeout=WAIT)
    assert (old, new.epoch) == (first, 10)


def test_session_events_reach_the_channel(running: Running) -> None:
    """Suspension, resumption and loss arrive in order, and work goes on in the new session."""
    claims = running.take(2)
    running.registry.session.suspend()
    assert running.inbox.states.get(timeout=WAIT) == "suspended"
    running.registry.session.resume()
    assert running.inbox.states.get(timeout=WAIT) == "resumed"
    running.registry.session.expire()
    assert {running.inbox.losses.get(timeout=WAIT)[0] for _ in claims} == set(claims)
    assert {claim.epoch for claim in running.take(2)} == {2}


def test_added_partitions_and_other_wishes_are_commands(running: Running) -> None:
    """Partition counts and what is published can change at any time."""
    running.take(2)
    running.coordinator.set_partitions({"orders": 3})
    assert running.take(1)[0].partition == TopicPartition("orders", 2)
    running.coordinator.update(MemberInfo(frozenset()))
    assert [running.inbox.requests.get(timeout=WAIT) for _ in range(3)]


def test_a_partition_under_claim_is_waited_for(
    zookeeper: InMemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is left out during its claim counts as released only when it is."""
    running = Running(zookeeper)
    registry, claiming, go = running.registry, threading.Event(), threading.Event()
    claim = registry.claim

    def late(partitions: Collection[TopicPartition], lease: Lease) -> Mapping[Any, Any]:
        claiming.set()
        assert go.wait(WAIT)
        return claim(partitions, lease)

    monkeypatch.setattr(registry, "claim", late)
    assert claiming.wait(WAIT)
    wanted = {TopicPartition("orders", 0)}
    running.coordinator.leave_out(wanted)
    assert not running.coordinator.wait_given_back(wanted, Deadline.after(0.05))
    go.set()
    running.take(2)
    asked = running.inbox.requests.get(timeout=WAIT)
    assert {asked.partition} == wanted
    assert not running.coordinator.wait_given_back(wanted, Deadline.after(0.05))
    running.coordinator.released(asked, clean=True)
    assert running.coordinator.wait_given_back(wanted, Deadline.after(WAIT))
    assert set(registry.owners("orders")) == {1}
    running.coordinator.stop(Deadline.after(0.05))


def test_a_stop_ends_a_member_that_could_not_join(zookeeper: InMemoryZooKeeper) -> None:
    """Without a connection there is nothing to give back, and the thread ends."""
    registry = InMemoryRegistry(zookeeper)
    registry.session.suspend()
    coordinator = Coordinator(registry, Inbox(), INFO, SETTINGS)
    coordinator.start()
    assert coordinator.stop(Deadline.after(WAIT)) == ()
    assert coordinator.stall_timeout is None


def test_a_crash_of_the_coordinator_is_told(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen error ends the coordinator: claims are lost, and the channel hears why."""
    claims = running.take(2)

    def broken(_topic: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(running.registry, "owners", broken)
    running.coordinator.set_partitions({"orders": 3})
    assert isinstance(running.inbox.errors.get(timeout=WAIT), FatalError)
    assert running.inbox.losses.qsize() == len(claims)
    assert isinstance(running.coordinator.failure, FatalError)
    assert not claims[0].lease.valid()


def test_a_member_that_is_denied_access_fails_and_says_where(zookeeper: InMemoryZooKeeper) -> None:
    """Denied while it joins, it ends with an error that names the node, and is no member."""
    registry, inbox = InMemoryRegistry(zookeeper, member="a"), Inbox()
    registry.session.deny(PATHS.ids)
    coordinator = Coordinator(registry, inbox, INFO, SETTINGS)
    coordinator.start()
    error = inbox.errors.get(timeout=WAIT)
    assert isinstance(error, AccessDeniedError)
    assert PATHS.ids in str(error)
    assert coordinator.failure is error
    assert coordinator.stop(Deadline.after(WAIT)) == ()


@pytest.mark.parametrize(
    "denied", [PATHS.member("a"), PATHS.owners("orders")], ids=["own node", "owner nodes"]
)
def test_access_denied_to_a_running_member_ends_all_its_claims(
    running: Running, denied: str
) -> None:
    """It does nothing more under them: their lease is broken before the channel hears why."""
    claims = running.take(2)
    running.registry.session.deny(denied)
    running.coordinator.update(MemberInfo(frozenset({"orders"}), weight=2))
    assert isinstance(running.inbox.errors.get(timeout=WAIT), AccessDeniedError)
    assert [running.inbox.losses.get_nowait() for _ in claims] == [
        (claim, LossReason.FAILED) for claim in claims
    ]
    assert not any(claim.lease.valid() for claim in claims)


def test_turns_are_seen_by_a_watchdog(zookeeper: InMemoryZooKeeper) -> None:
    """The time of the last turn moves on though nothing happens."""
    zookeeper.session_timeout = 0.3
    running = Running(zookeeper)
    running.take(2)
    seen = running.coordinator.last_beat
    deadline = Deadline.after(WAIT)
    moved = threading.Event()
    while running.coordinator.last_beat == seen and not deadline.expired:
        moved.wait(0.01)
    assert seen < running.coordinator.last_beat <= SYSTEM_CLOCK.monotonic()
    running.coordinator.stop(Deadline.after(0.05))
