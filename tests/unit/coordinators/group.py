"""A group in memory whose members take turns on one thread, by a clock that the test turns."""

from __future__ import annotations

from collections import Counter, deque
from functools import cache, partial
from typing import TYPE_CHECKING

from headrace.config import DynamicCoordinatorConfig
from headrace.coordinators.member import GroupMembership
from headrace.coordinators.member_info import MemberInfo
from headrace.coordinators.znodes import GroupPaths
from headrace.core.records import TopicPartition
from headrace.testing import InMemoryRegistry, InMemoryZooKeeper
from headrace.testing.channel import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.member_info import AssignmentState, MemberState
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.core.errors import HeadraceError

TOPIC = "orders"
INFO = MemberInfo(frozenset({TOPIC}))
PATHS = GroupPaths("group")

#: Every step of every test asks for these paths again.
epoch_path = cache(PATHS.epoch)

SETTINGS = DynamicCoordinatorConfig(rebalance_delay="500ms", resync_interval="30s")


class Channel:
    """A listener that remembers, and gives back what it is asked for unless it is told not to.

    ``committed`` are the epochs that the group's offsets name, which all channels share: one that
    claims under no higher epoch has it raised, and begins only then. Where it works in tasks
    (``together``), what is left of one that has lost a part, or is asked for, has to end before any
    part comes.
    """

    def __init__(self, committed: dict[TopicPartition, int], *, together: bool = False) -> None:
        self.committed = committed
        self.together = together
        self.parted: set[TopicPartition] = set()
        self.member: GroupMembership | None = None
        self.gives_back = True
        self.held: dict[TopicPartition, Claim] = {}
        self.begun: dict[TopicPartition, Claim] = {}
        self.asked: list[Claim] = []
        self.ending: set[TopicPartition] = set()
        self.lost: list[tuple[Claim, LossReason]] = []
        self.raised: list[tuple[Claim, Claim]] = []
        self.calls: list[str] = []
        self.summary: RebalanceSummary | None = None
        self.error: HeadraceError | None = None
        self.late: deque[Callable[[], None]] = deque()

    def claimed(self, claim: Claim) -> None:
        """Hold it."""
        assert claim.partition not in self.held
        if self.together:
            assert (self.parted | self.ending).isdisjoint(self._rest_of(claim.partition))
        self.held[claim.partition] = claim
        self.ending.discard(claim.partition)
        self.calls.append("claimed")
        self.late.append(partial(self._begin, claim))

    def _rest_of(self, partition: TopicPartition) -> set[TopicPartition]:
        return {each for each in self.held if each.partition == partition.partition}

    def _end(self, partition: TopicPartition) -> Claim | None:
        claim = self.held.pop(partition, None)
        if claim is not None:
            self.parted.discard(partition)
            self.parted |= self._rest_of(partition)
        return claim

    def _begin(self, claim: Claim) -> None:
        if self.held.get(claim.partition) is not claim:
            return
        known = self.committed.get(claim.partition, 0)
        if claim.epoch > known:
            self.committed[claim.partition] = claim.epoch
            self.begun[claim.partition] = claim
            return
        assert self.member is not None
        self.member.raise_epoch(claim, known + 1)

    def release_requested(self, claim: Claim) -> None:
        """Give it back at the next occasion."""
        assert self.held[claim.partition] == claim
        self.asked.append(claim)
        self.ending.add(claim.partition)
        self.calls.append("release_requested")
        if self.gives_back:
            self.late.append(partial(self.release, claim))

    def release(self, claim: Claim, *, clean: bool = True) -> None:
        """Give a claim back, unless it was lost; what came after it is another one."""
        assert self.member is not None
        if self.held.get(claim.partition) == self._newest(claim):
            self._end(claim.partition)
            self.member.released(claim, clean=clean)

    def _newest(self, claim: Claim) -> Claim:
        """Return what a claim became, whose epoch may have been raised."""
        for old, new in self.raised:
            claim = new if old == claim else claim
        return claim

    def abandon(self, partition: TopicPartition) -> None:
        """Give a claim up that could not be started, if it is there."""
        assert self.member is not None
        claim = self._end(partition)
        if claim is not None:
            self.member.abandoned(claim)

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """Forget it."""
        assert not claim.lease.valid() or reason.value == "node_changed"
        assert self._end(claim.partition) is not None
        self.lost.append((claim, reason))
        self.calls.append("claim_lost")

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        """Go on with the new one."""
        assert self.held[old.partition] == old
        self.held[old.partition] = new
        self.raised.append((old, new))
        self.late.append(partial(self._begin, new))

    def suspended(self) -> None:
        """Remember it."""
        self.calls.append("suspended")

    def resumed(self) -> None:
        """Remember it."""
        self.calls.append("resumed")

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """Remember it."""
        self.summary = summary

    def failed(self, error: HeadraceError) -> None:
        """Remember it."""
        self.error = error


class Participant:
    """One member with its channel and its own view of the store."""

    def __init__(self, group: Group, name: str, info: MemberInfo) -> None:
        self.registry = InMemoryRegistry(group.zookeeper, "group", name, clock=group.clock)
        self.session = self.registry.session
        self.channel = Channel(group.committed, together=info.together)
        self.member = GroupMembership(self.registry, self.channel, info, SETTINGS, group.clock)
        self.channel.member = self.member
        self.stopped = False
        self.deaf = False
        self._events: deque[Callable[[], None]] = deque()
        self._unheard: deque[Callable[[], None]] = deque()
        self.registry.watch(self._watch_fired)
        self.registry.session.listen(
            lambda state: self._events.append(partial(self.member.session_changed, state))
        )

    def _watch_fired(self) -> None:
        (self._unheard if self.deaf else self._events).append(self.member.rebalance.look_soon)

    def hear(self) -> None:
        """Deliver the watches that were withheld while it was deaf."""
        self.deaf = False
        self._events += self._unheard
        self._unheard.clear()

    def run_once(self) -> None:
        """Take one turn, unless the process is stopped."""
        if self.stopped:
            return
        while self._events:
            self._events.popleft()()
        while self.channel.late:
            self.channel.late.popleft()()
        self.member.run_once()

    @property
    def held(self) -> list[int]:
        """The numbers of the partitions the channel works on."""
        return sorted(partition.partition for partition in self.channel.held)

    def tasks(self, topics: int) -> list[int]:
        """The tasks of so many topics that are whole: what is asked for back is of none."""
        kept = Counter(p.partition for p in self.channel.held if p not in self.channel.ending)
        return sorted(number for number, parts in kept.items() if parts == topics)


class Group:
    """Members by name, one store and one clock."""

    def __init__(
        self, partitions: int = 8, session_timeout: float = 6.0, topics: Collection[str] = (TOPIC,)
    ) -> None:
        self.clock = FakeClock()
        self.zookeeper = InMemoryZooKeeper(session_timeout, self.clock)
        self.counts: Mapping[str, int] = dict.fromkeys(topics, partitions)
        self.committed: dict[TopicPartition, int] = {}
        self.participants: list[Participant] = []

    def join(self, name: str, info: MemberInfo = INFO) -> Participant:
        """Add a member; it acts from the next ``run`` on."""
        participant = Participant(self, name, info)
        participant.member.rebalance.set_partitions(self.counts)
        self.participants.append(participant)
        return participant

    def grow(self, partitions: int) -> None:
        """Let everybody know of more partitions."""
        self.counts = dict.fromkeys(self.counts, partitions)
        for participant in self.participants:
            participant.member.rebalance.set_partitions(self.counts)

    def run(self, seconds: float = 3.0, step: float = 0.05) -> None:
        """Let time pass while everybody takes turns. No partition ever has two valid claims."""
        for _ in range(round(seconds / step)):
            for participant in self.participants:
                participant.run_once()
            self.check_exclusive()
            self.clock.advance(step)

    def check_exclusive(self) -> None:
        """Assert that of the claims anybody may act on no two are for the same partition."""
        effective = [
            claim.partition
            for participant in self.participants
            for claim in participant.channel.held.values()
            if claim.lease.valid() and not self.is_superseded(claim)
        ]
        assert len(effective) == len(set(effective))

    def is_superseded(self, claim: Claim) -> bool:
        """Whether a checked write under the claim would be refused."""
        node = self.zookeeper.node(epoch_path(claim.partition))
        return node is None or node.stat.version != claim.node_version

    def crash(self, participant: Participant) -> None:
        """Let a process die: its session ends, and it takes no more turns."""
        participant.stopped = True
        participant.channel.held.clear()
        participant.session.close()

    def epochs(self) -> dict[int, int]:
        """Return the epoch of each held partition."""
        return {
            partition.partition: claim.epoch
            for participant in self.participants
            for partition, claim in participant.channel.held.items()
        }


def partition(number: int) -> TopicPartition:
    """Return a partition of the topic."""
    return TopicPartition(TOPIC, number)


def state_of(participant: Participant) -> MemberState:
    """Return where a member stands; a call, so that the checker does not remember the answer."""
    return participant.member.state


def assignment_of(participant: Participant) -> AssignmentState:
    """Return how far a member has come to what it is to have; a call for the same reason."""
    return participant.member.rebalance.assignment
