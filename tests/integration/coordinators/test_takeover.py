from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.config import DynamicCoordinatorConfig
from headrace.coordinators.claims import LossReason
from headrace.coordinators.coordinator import Coordinator
from headrace.coordinators.member_info import MemberInfo
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.integration.coordinators.process import TOPIC
from tests.sessions import expire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.coordinators.claims import Claim
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.core.errors import HeadraceError

WAIT = 60.0
PARTITIONS = 8


class Member:
    """A coordinator with a session of its own and a channel that gives back what it is asked."""

    def __init__(
        self,
        group: Group,
        name: str,
        registry: Callable[[ZooKeeperSession, str, str], ZooKeeperRegistry] = ZooKeeperRegistry,
    ) -> None:
        self._changed = group.changed
        self.name = name
        self.held: dict[int, Claim] = {}
        self.lost: list[tuple[Claim, LossReason]] = []
        self.error: HeadraceError | None = None
        self.session = ZooKeeperSession(group.settings)
        self.session.start()
        self.coordinator = Coordinator(
            registry(self.session, "group", name),
            self,
            MemberInfo(frozenset({TOPIC})),
            DynamicCoordinatorConfig(rebalance_delay="200ms"),
        )
        self.coordinator.set_partitions({TOPIC: PARTITIONS})
        self.coordinator.start()

    def claimed(self, claim: Claim) -> None:
        """Hold it."""
        with self._changed:
            self.held[claim.partition.partition] = claim
            self._changed.notify_all()

    def release_requested(self, claim: Claim) -> None:
        """Give it back."""
        with self._changed:
            del self.held[claim.partition.partition]
            self._changed.notify_all()
        self.coordinator.released(claim, clean=True)

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """Forget it."""
        with self._changed:
            self.lost.append((claim, reason))
            del self.held[claim.partition.partition]
            self._changed.notify_all()

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        """Do nothing: no test here asks for a higher epoch."""

    def suspended(self) -> None:
        """Do nothing."""

    def resumed(self) -> None:
        """Do nothing."""

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """Do nothing."""

    def failed(self, error: HeadraceError) -> None:
        """Remember it."""
        self.error = error

    def stop(self) -> None:
        """Leave and end the session."""
        self.coordinator.stop(Deadline.after(WAIT))
        self.session.close(Deadline.after(WAIT))


class Group:
    """Members below a chroot of their own."""

    def __init__(self, hosts: str, session_timeout: float = 4) -> None:
        self.settings = ZooKeeperSettings(hosts, f"/{uuid4().hex}", session_timeout)
        self.changed = threading.Condition()
        self.members: list[Member] = []

    def join(self, name: str) -> Member:
        """Add a member."""
        member = Member(self, name)
        self.members.append(member)
        return member

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that depends on the members' claims."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT), [m.held.keys() for m in self.members]

    def wait_for_counts(self, **counts: int) -> None:
        """Wait until members hold so many partitions."""
        members = {member.name: member for member in self.members}
        self.wait(lambda: all(len(members[n].held) == count for n, count in counts.items()))


@pytest.fixture
def group(zookeeper_hosts: str) -> Iterator[Group]:
    """Return a group whose members leave at the end."""
    group = Group(zookeeper_hosts)
    yield group
    for member in group.members:
        member.stop()


def test_three_members_share_and_hand_over(group: Group) -> None:
    """Partitions are split evenly on each join, and taken over after a clean leave."""
    a = group.join("a")
    group.wait_for_counts(a=8)
    group.join("b")
    group.wait_for_counts(a=4, b=4)
    group.join("c")
    group.wait(lambda: sorted(len(m.held) for m in group.members) == [2, 3, 3])
    had = set(a.held)
    assert a.coordinator.stop(Deadline.after(WAIT)) == ()
    group.wait_for_counts(b=4, c=4)
    taken = [c for m in group.members[1:] for n, c in m.held.items() if n in had]
    assert len(taken) == len(had)
    assert all(claim.previous and claim.previous.clean_end for claim in taken)
    assert {claim.previous.member for claim in taken if claim.previous} == {"a"}
    assert not a.lost


def test_an_expired_session_is_taken_over_and_comes_back(group: Group) -> None:
    """The others take over uncleanly with higher epochs; the expired member joins again."""
    a, b = group.join("a"), group.join("b")
    group.wait_for_counts(a=4, b=4)
    before = dict(a.held)
    expire(a.session)
    group.wait(lambda: len(a.lost) == 4)
    assert {reason for _, reason in a.lost} == {LossReason.SESSION_LOST}
    assert not any(claim.lease.valid() for claim in before.values())
    group.wait_for_counts(a=4, b=4)
    for number, claim in before.items():
        after = {**a.held, **b.held}[number]
        assert after.epoch > claim.epoch


@pytest.mark.slow  # a session may last a minute, and for so long it could be a former process's
def test_a_second_process_of_the_same_name_is_refused(group: Group) -> None:
    """The newcomer fails with an error that names the holder, and the holder goes on."""
    a = group.join("a")
    group.wait_for_counts(a=8)
    second = group.join("a")
    group.wait(lambda: second.error is not None)
    assert isinstance(second.error, StartError)
    assert "member 'a' is already in the group" in str(second.error)
    assert len(a.held) == 8
    assert not a.lost


def test_a_killed_process_is_taken_over_with_a_higher_epoch(group: Group, tmp_path: Path) -> None:
    """After a SIGKILL the survivor claims everything once the session is over, to be fenced."""
    b = group.join("b")
    with process(group, tmp_path, "a") as (killed, events):
        group.wait_for_counts(b=4)
        claimed = {next(events)["claimed"] for _ in range(4)}
        killed.kill()
        killed.wait(WAIT)
        group.wait_for_counts(b=8)
    for number in claimed:
        assert isinstance(number, int)
        previous = b.held[number].previous
        assert previous is not None
        assert (previous.member, previous.clean_end) == ("a", False)
        assert b.held[number].epoch == previous.epoch + 1


def test_a_killed_process_that_is_started_again_does_not_wait_for_its_old_session(
    zookeeper_hosts: str, tmp_path: Path
) -> None:
    """With its state directory a restarted member claims at once what it held, with new epochs."""
    group = Group(zookeeper_hosts, session_timeout=60)
    with process(group, tmp_path, "a") as (killed, events):
        for _ in range(PARTITIONS):
            assert next(events)["epoch"] == 1
        killed.kill()
        killed.wait(WAIT)
    deadline = Deadline.after(30)
    with process(group, tmp_path, "a") as (again, events):
        for _ in range(PARTITIONS):
            assert next(events)["epoch"] == 2
        assert not deadline.expired, "the old session would have ended after a minute"
        assert again.stdin is not None
        again.stdin.close()
        assert again.wait(WAIT) == 0
    assert not (tmp_path / "a" / "session.json").exists()


@contextmanager
def process(
    group: Group, state: Path, name: str
) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, object]]]]:
    """Run a member in a process of its own; gives the process and what it prints."""
    settings = group.settings
    arguments = (settings.hosts, settings.chroot, state, name, settings.session_timeout, PARTITIONS)
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.integration.coordinators.process",
            *[str(argument) for argument in arguments],
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        try:
            yield started, (json.loads(line) for line in started.stdout)
        finally:
            started.kill()
