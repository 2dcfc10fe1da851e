"""Members against a simulated ZooKeeper, through whatever order of events hypothesis thinks of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headrace.coordinators.member_info import ENDED, MemberInfo
from headrace.coordinators.znodes import EpochDocument, OwnerDocument
from headrace.core.records import TopicPartition, all_partitions
from tests.unit.coordinators.group import INFO, PATHS, TOPIC, Group, Participant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordinators.claims import Claim

PARTITIONS = 5
MOST_PARTITIONS = 8
NAMES = ("a", "b", "c")

#: Seconds of a turn in the model, and in which a healed group has to agree: the resync finds
#: what no watch tells, and after a loss a member may have to wait for its own former session.
STEP = 0.25
AGREEMENT = 80.0

#: What a hand may write into an owner node.
OWNERS = (b"?", OwnerDocument("b", 1, 1, "elsewhere", 0.0).encode())

#: What a hand may write into an epoch node: nonsense, or the epoch of long ago.
EPOCHS = (b"?", EpochDocument(0, "b", 1, None, clean_end=True).encode())

members = st.sampled_from(NAMES)

#: A topic, of which there may be one, and a partition.
places = st.tuples(st.integers(0, 1), st.integers(0, MOST_PARTITIONS - 1))


class GroupMachine(RuleBasedStateMachine):
    """Joins, crashes, stops, cuts, lost and late answers, and hands in the tree, in any order.

    The simulated servers end a session as real ones do: when they heard nothing of it for the
    session time-out, or at once when a process that dies closes it.
    """

    topics: tuple[str, ...] = (TOPIC,)
    infos: Mapping[str, MemberInfo] = dict.fromkeys(NAMES, INFO)

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(PARTITIONS, topics=self.topics)
        self.running: dict[str, Participant] = {}
        self.silent_since: dict[Participant, float] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.partitions = PARTITIONS
        self.seen: list[Claim] = []

    def at(self, place: tuple[int, int]) -> TopicPartition:
        """Return the partition at a place."""
        topic, number = place
        return TopicPartition(self.topics[topic % len(self.topics)], number)

    # --- members --------------------------------------------------------------------------------

    @initialize(names=st.sets(members, min_size=1))
    def begin(self, names: set[str]) -> None:
        """Begin with members that have their partitions, or the first steps would be all joins."""
        for name in sorted(names):
            self.join(name)
        self.pass_time(3.0)

    @rule(name=members)
    def join(self, name: str) -> None:
        """Start a member; a second one of its name is refused."""
        if name not in self.running:
            self.running[name] = self.group.join(name, self.infos[name])

    @rule(name=members)
    def crash(self, name: str) -> None:
        """End a process without a word; its session lives on until it is over."""
        participant = self.running.pop(name, None)
        if participant is not None:
            participant.stopped = True
            self.silent_since.setdefault(participant, self.now)

    @rule(name=members)
    def leave(self, name: str) -> None:
        """Stop a member in order; what its channel keeps is lost."""
        participant = self.running.pop(name, None)
        if participant is not None:
            participant.stopped = False
            participant.member.leave()
            participant.session.close()
            self.silent_since.pop(participant, None)
            self.group.participants.remove(participant)

    @rule(name=members)
    def stop(self, name: str) -> None:
        """Stop a process where it is, as a signal or a long collection does."""
        participant = self.running.get(name)
        if participant is not None:
            participant.stopped = True
            self.silent_since.setdefault(participant, self.now)

    @rule(name=members)
    def go_on(self, name: str) -> None:
        """Let a stopped or cut off process go on; its client learns what became of its session."""
        participant = self.running.get(name)
        if participant is None or self.silent_since.pop(participant, None) is None:
            return
        participant.stopped = False
        participant.session.suspend()
        participant.session.resume()

    @rule(name=members)
    def cut(self, name: str) -> None:
        """Cut the connection to the servers."""
        participant = self.running.get(name)
        if participant is not None and not participant.stopped:
            participant.session.suspend()
            self.silent_since.setdefault(participant, self.now)

    @rule(name=members, number=st.integers(1, 3), delay=st.booleans())
    def lose_answers(self, name: str, number: int, *, delay: bool) -> None:
        """Let changes happen unheard of, or much later."""
        if name in self.running:
            self.running[name].session.lose_answers(number, delay=delay)

    @rule(name=members)
    def withhold_watches(self, name: str) -> None:
        """Let a member hear of no change in the tree though it runs."""
        if name in self.running:
            self.running[name].deaf = True

    @rule(name=members)
    def deliver_watches(self, name: str) -> None:
        """Let it hear of all at once."""
        if name in self.running:
            self.running[name].hear()

    @rule(name=members)
    def end_session(self, name: str) -> None:
        """Let the servers end the session of a member that they hear, and that hears of it."""
        participant = self.running.get(name)
        if participant is not None and participant not in self.silent_since:
            participant.session.expire()
            participant.run_once()

    @rule()
    def wipe(self) -> None:
        """Let the servers come back without their data.

        Clients are let in by none that knows less than they saw, for as long as a session.
        """
        connected = [p for p in self.running.values() if p not in self.silent_since]
        for participant in connected:
            participant.session.suspend()
        self.pass_time(self.group.zookeeper.session_timeout)
        self.group.zookeeper.wipe()
        for participant in connected:
            participant.session.resume()

    @rule(name=members)
    def deliver_late(self, name: str) -> None:
        """Execute what was delayed."""
        if name in self.running:
            self.running[name].session.deliver_late()

    # --- channels -------------------------------------------------------------------------------

    @rule(name=members)
    def keep(self, name: str) -> None:
        """Let a channel sit on what it is asked for."""
        if name in self.running:
            self.running[name].channel.gives_back = False

    @rule(name=members, clean=st.booleans())
    def give_back(self, name: str, *, clean: bool) -> None:
        """Let a channel give back what it was asked for, finished or not."""
        participant = self.running.get(name)
        if participant is None or participant.stopped:
            return
        participant.channel.gives_back = True
        for claim in _asked(participant):
            participant.channel.release(claim, clean=clean)

    @rule(name=members, place=places)
    def abandon(self, name: str, place: tuple[int, int]) -> None:
        """Let a channel fail to begin with a partition."""
        participant = self.running.get(name)
        if participant is not None and not participant.stopped:
            participant.channel.abandon(self.at(place))

    @rule(name=members, place=places, more=st.integers(1, 5))
    def raise_epoch(self, name: str, place: tuple[int, int], more: int) -> None:
        """Let a channel learn of a higher epoch in its sink."""
        participant = self.running.get(name)
        if participant is not None and not participant.stopped:
            claim = participant.channel.held.get(self.at(place))
            if claim is not None:
                participant.member.raise_epoch(claim, claim.epoch + more)

    @rule(name=members, left_out=st.sets(places, max_size=2))
    def leave_out(self, name: str, left_out: set[tuple[int, int]]) -> None:
        """Let a channel do without some partitions, or with all again."""
        participant = self.running.get(name)
        if participant is not None and not participant.stopped:
            participant.member.rebalance.leave_out(set(map(self.at, left_out)))

    @rule(name=members, takes_part=st.booleans())
    def withdraw(self, name: str, *, takes_part: bool) -> None:
        """Let a channel leave the group for a while, or come back."""
        participant = self.running.get(name)
        if participant is None or participant.stopped:
            return
        if takes_part:
            participant.member.undrain()
        else:
            participant.member.withdraw()

    @rule(name=members)
    def add_partition(self, name: str) -> None:
        """Let a member see a new partition; the others see it with the next one, or at the end."""
        if name in self.running and self.partitions < MOST_PARTITIONS:
            self.partitions += 1
            self.group.counts = dict.fromkeys(self.topics, self.partitions)
            self.running[name].member.rebalance.set_partitions(self.group.counts)

    # --- hands in the tree ----------------------------------------------------------------------

    @rule(place=places)
    def remove_owner(self, place: tuple[int, int]) -> None:
        """Delete an owner node by hand."""
        if self._has_both_nodes(self.at(place)):
            self.group.zookeeper.remove(PATHS.owner(self.at(place)))

    @rule(place=places)
    def remove_epoch(self, place: tuple[int, int]) -> None:
        """Delete an epoch node by hand."""
        if self._has_both_nodes(self.at(place)) and not self._has_old_claim(self.at(place)):
            self.group.zookeeper.remove(PATHS.epoch(self.at(place)))

    def _has_both_nodes(self, partition: TopicPartition) -> bool:
        """Return whether neither was deleted: without both, versions restart while an old claim
        exists.
        """
        paths = PATHS.owner(partition), PATHS.epoch(partition)
        return all(self.group.zookeeper.node(path) is not None for path in paths)

    def _has_old_claim(self, partition: TopicPartition) -> bool:
        """Whether a claim that was superseded has its lease still.

        It was under an owner node that a hand deleted before. Versions that begin anew would be
        those of the old claim.
        """
        held = [each.channel.held.get(partition) for each in self.group.participants]
        claims = [claim for claim in held if claim is not None and claim.lease.valid()]
        return any(self.group.is_superseded(claim) for claim in claims)

    @rule(place=places, data=st.sampled_from(OWNERS))
    def spoil_owner(self, place: tuple[int, int], data: bytes) -> None:
        """Write nonsense, or another member's name, into an owner node by hand."""
        if self.group.zookeeper.node(PATHS.owner(self.at(place))) is not None:
            self.group.zookeeper.put(PATHS.owner(self.at(place)), data)

    @rule(place=places, data=st.sampled_from(EPOCHS))
    def spoil_epoch(self, place: tuple[int, int], data: bytes) -> None:
        """Write nonsense, or a former epoch, into an epoch node by hand."""
        if self.group.zookeeper.node(PATHS.epoch(self.at(place))) is not None:
            self.group.zookeeper.put(PATHS.epoch(self.at(place)), data)

    @rule(name=members)
    def remove_member(self, name: str) -> None:
        """Delete a member's node by hand."""
        if self.group.zookeeper.node(PATHS.member(name)) is not None:
            self.group.zookeeper.remove(PATHS.member(name))

    # --- time -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.25, 1.0, 3.0, 7.0)))
    def pass_time(self, seconds: float) -> None:
        """Let everybody act; the servers end the sessions they heard nothing of for too long."""
        for _ in range(round(seconds / STEP)):
            self.group.run(STEP, STEP)
            self._end_silent_sessions()
            self._note_epochs()

    @property
    def now(self) -> float:
        """Seconds of the clock that all share."""
        return self.group.clock.monotonic()

    def _end_silent_sessions(self) -> None:
        timeout = self.group.zookeeper.session_timeout
        for participant, since in list(self.silent_since.items()):
            if self.now - since < timeout:
                continue
            participant.session.expire()
            if participant not in self.running.values():
                participant.channel.held.clear()
                self.group.participants.remove(participant)
                del self.silent_since[participant]

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_owners_with_effect(self) -> None:
        """No partition has two claims that are in effect."""
        self.group.check_exclusive()

    def _note_epochs(self) -> None:
        """Each claim that is begun with has a higher epoch than all before."""
        for participant in self.group.participants:
            for claim in participant.channel.held.values():
                if participant.channel.begun.get(claim.partition) is claim:
                    self._note(claim)

    def _note(self, claim: Claim) -> None:
        if any(claim is known for known in self.seen):
            return
        self.seen.append(claim)
        assert claim.epoch > self.epochs.get(claim.partition, 0)
        self.epochs[claim.partition] = claim.epoch

    # --- the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Heal everything: then the group agrees, and every partition is with one member."""
        for name, participant in self.running.items():
            self.go_on(name)
            participant.session.lose_answers(0)
            participant.session.deliver_late()
            participant.hear()
            participant.member.rebalance.set_partitions(self.group.counts)
            participant.member.rebalance.leave_out(())
            participant.member.undrain()
            self.give_back(name, clean=True)
        self.pass_time(AGREEMENT)
        active = [p for p in self.running.values() if p.member.state not in ENDED]
        assert len(active) == len(self.running)
        if active:
            self.check_agreement(active)

    def check_agreement(self, active: list[Participant]) -> None:
        """Every partition is with one member, and all have as many."""
        _check_claims(self.group, active, self.partitions)
        _check_even([len(participant.held) for participant in active])


class TaskMachine(GroupMachine):
    """Two topics, and members that work in tasks."""

    topics = ("orders", "payments")
    infos: Mapping[str, MemberInfo] = dict.fromkeys(
        NAMES, MemberInfo(frozenset(topics), together=True)
    )

    def check_agreement(self, active: list[Participant]) -> None:
        """Every task is whole with one member; they have as many, and nothing beside them."""
        _check_claims(self.group, active, self.partitions)
        tasks = [participant.tasks(len(self.topics)) for participant in active]
        _check_even([len(own) for own in tasks])
        assert sorted(number for own in tasks for number in own) == list(range(self.partitions))


class MixedMachine(TaskMachine):
    """The same with a member without tasks: while it runs, partitions are allocated."""

    infos: Mapping[str, MemberInfo] = {
        **TaskMachine.infos,
        "c": MemberInfo(frozenset(TaskMachine.topics)),
    }

    def check_agreement(self, active: list[Participant]) -> None:
        """The spread is even in tasks, or in partitions where c is active, which is named then."""
        together = [participant for participant in active if participant.registry.member != "c"]
        if len(together) == len(active):
            super().check_agreement(active)
        else:
            GroupMachine.check_agreement(self, active)
        for participant in active:
            summary = participant.channel.summary
            assert summary is not None
            assert summary.without_tasks == (("c",) if 0 < len(together) < len(active) else ())


def _asked(participant: Participant) -> list[Claim]:
    held = participant.channel.held
    return [claim for claim in participant.channel.asked if held.get(claim.partition) == claim]


def _check_even(numbers: list[int]) -> None:
    assert max(numbers) - min(numbers) <= 1


def _check_claims(group: Group, active: list[Participant], partitions: int) -> None:
    held = sorted(each for participant in active for each in participant.channel.held)
    assert held == all_partitions(dict.fromkeys(group.counts, partitions))
    for participant in active:
        claims = participant.channel.held.values()
        assert participant.registry.verify(claims) == []
        for claim in claims:
            node: Any = group.zookeeper.node(PATHS.epoch(claim.partition))
            assert EpochDocument.decode("", node.data).member == participant.registry.member


USUAL = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = USUAL

TestTaskMachine = TaskMachine.TestCase
TestTaskMachine.settings = USUAL

TestMixedMachine = MixedMachine.TestCase
TestMixedMachine.settings = USUAL


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [GroupMachine, TaskMachine, MixedMachine])
def test_many_more_orders_of_events(machine: type[GroupMachine]) -> None:
    """The examples are those of the profile for long runs, with the output of the quick run."""
    examples = settings.get_profile("long").max_examples
    run_state_machine_as_test(machine, settings=settings(USUAL, max_examples=examples))
