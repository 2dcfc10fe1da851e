"""Looks at the group, computes the map, and moves this member's own partitions towards it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from headrace.coordinators.allocation import allocate
from headrace.coordinators.claims import (
    WITH_CHANNEL,
    Claim,
    ClaimRefusal,
    ClaimState,
    LossReason,
    Release,
)
from headrace.coordinators.member_info import AssignmentState
from headrace.core.records import TopicPartition, all_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.config.models.channel import CoordinatorBase
    from headrace.coordinators.allocation import Allocation
    from headrace.coordinators.claims import ClaimTable, HeldClaim
    from headrace.coordinators.lease import Lease
    from headrace.coordinators.member_info import AssignmentMode, MemberInfo
    from headrace.coordinators.registry import GroupView, Owner
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from headrace.core.clock import Clock
    from headrace.core.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class RebalanceSummary:
    """The group as one member sees it.

    ``mine`` is what this member is to have, ``owners`` who owns what at present (None: an
    unreadable owner). ``unowned`` partitions are assigned to no member, ``pending`` ones are
    assigned but not owned yet. ``contended``, ``missing``, ``foreign``, ``modes`` and
    ``without_tasks``, ``without_warm`` and ``goal`` are as in ``Allocation``. ``problems`` says by
    member what is wrong with its node. ``member`` is this one, and ``active`` are those that are
    given partitions.
    """

    members: tuple[str, ...]
    mine: frozenset[TopicPartition]
    owners: Mapping[TopicPartition, str | None]
    unowned: frozenset[TopicPartition]
    pending: frozenset[TopicPartition]
    contended: Mapping[TopicPartition, tuple[str, ...]]
    missing: Mapping[str, tuple[TopicPartition, ...]]
    foreign: Mapping[TopicPartition, str]
    modes: frozenset[AssignmentMode]
    problems: Mapping[str, str]
    without_tasks: tuple[str, ...] = ()
    member: str = ""
    active: frozenset[str] = frozenset()
    goal: Mapping[TopicPartition, str] = field(default_factory=dict)
    without_warm: tuple[str, ...] = ()


class Listener(Protocol):
    """Implemented by the channel. Every method runs on the coordinator's thread: only enqueue.

    For one claim: ``claimed``, then perhaps ``epoch_raised`` and ``release_requested``, then
    exactly one end, either ``claim_lost`` or the channel's own ``released`` or ``abandon``.
    """

    def claimed(self, claim: Claim) -> None:
        """Handle a new claim: fence its previous owner, read its offset, deliver."""
        ...

    def release_requested(self, claim: Claim) -> None:
        """Finish and answer with ``Coordinator.released``. Told once; not taken back."""
        ...

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """Handle a lost claim. Nothing is to be committed or answered under it."""
        ...

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        """Answer to ``Coordinator.raise_epoch``: go on with ``new``, which may equal ``old``."""
        ...

    def suspended(self) -> None:
        """Handle ZooKeeper's silence: claims hold while their lease does; nothing new begins."""
        ...

    def resumed(self) -> None:
        """Handle that ZooKeeper answers again, even if the session is over.

        Claims that ended meanwhile were told of before this call.
        """
        ...

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """Handle an assignment of the group that differs from the last summary."""
        ...

    def failed(self, error: HeadraceError) -> None:
        """Handle the coordinator's failure, its last call; all claims were reported lost before."""
        ...


LONGEST_WAIT = 10
"""The most delays by which a group that keeps changing can put off a rebalance."""


class Debounce:
    """Debounces membership: one rule for start, join, leave, crash and ZooKeeper's return.

    A draining member counts as gone, so that its leave is one change and not two. For which tasks
    members are warm changes all the time, and is acted on at once.
    """

    def __init__(self, delay: float, clock: Clock) -> None:
        self._delay = delay
        self._clock = clock
        self._members: Mapping[str, MemberInfo] | None = None
        self._same_since = 0.0
        self._restless_since: float | None = None

    def observe(self, members: Mapping[str, MemberInfo]) -> float:
        """Record the members seen now; return the seconds to wait before acting on them."""
        now = self._clock.monotonic()
        present = {
            name: replace(info, warm=None) for name, info in members.items() if not info.draining
        }
        if present != self._members:
            self._members = present
            self._same_since = now
            if self._restless_since is None:
                self._restless_since = now
        if self._restless_since is None:
            return 0.0
        due = min(self._same_since + self._delay, self._restless_since + LONGEST_WAIT * self._delay)
        if now < due:
            return due - now
        self._restless_since = None
        return 0.0


log = structlog.get_logger(__name__)

COALESCE = 0.05
"""Seconds from a watch to the look at the group: partitions given back one by one make one look."""

AT_ONCE = 50
"""Claims that are taken or given back before the first answer is waited for. Between two such
portions a sign of life is given where it is due; a portion takes some 50 ms."""


RETRY_DELAY = 10.0
"""Seconds until a partition that the channel abandoned, or that could not be claimed, is tried
again."""

_UNSETTLED = frozenset({AssignmentState.PENDING, AssignmentState.OVERDUE})

ASSIGNMENT_LIMIT = 60.0
"""Seconds after joining in which a member should have its partitions: others finish their batches
first, and a session that has to expire may last as long."""


class Rebalance:
    """The looking and moving part of ``GroupMembership``; same thread, same errors.

    ``keep_alive`` is called between steps that take a while. Where ``together`` is set, the member
    works in tasks: it claims one when all of it can be had, and gives it back as a whole. In a
    mixed group it claims what parts it can have, but none while another one of the task ends.
    """

    def __init__(
        self,
        registry: ZooKeeperRegistry,
        listener: Listener,
        claim_table: ClaimTable,
        settings: CoordinatorBase,
        clock: Clock,
        *,
        keep_alive: Callable[[], None],
        together: bool = False,
    ) -> None:
        self.together = together
        self._registry = registry
        self._listener = listener
        self._claim_table = claim_table
        self._settings = settings
        self._clock = clock
        self._keep_alive = keep_alive
        self._log = log.bind(member=registry.member)
        self._debounce = Debounce(settings.rebalance_delay, clock)
        self._counts: dict[str, int] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._left_out: frozenset[TopicPartition] = frozenset()
        self._last_look_took = 0.0
        self._returning = True
        self._said: RebalanceSummary | None = None
        self._joined_at = clock.monotonic()
        #: How far the member has come to what the map gives it. Any thread.
        self.assignment = AssignmentState.PENDING
        self._next_verification = clock.monotonic() + settings.resync_interval
        self.next_look = clock.monotonic()

    # --- when -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start over after joining: the group is new to us."""
        self._returning = True
        self._debounce = Debounce(self._settings.rebalance_delay, self._clock)
        self._joined_at = self.next_look = self._clock.monotonic()
        self.assignment = AssignmentState.PENDING

    def keep_pace(self, settings: CoordinatorBase) -> None:
        """Apply other settings of pace."""
        before, self._settings = self._settings, settings
        if settings.rebalance_delay != before.rebalance_delay:
            self._debounce = Debounce(settings.rebalance_delay, self._clock)
        self.look_soon()

    def look_soon(self) -> None:
        """Schedule a check after more events can have arrived; later where reading takes long."""
        self._look_after(max(COALESCE, self._last_look_took))

    def _look_after(self, seconds: float) -> None:
        self.next_look = min(self.next_look, self._clock.monotonic() + seconds)

    def set_partitions(self, counts: Mapping[str, int]) -> None:
        """Set the number of partitions of each topic."""
        if dict(counts) != self._counts:
            self._counts = dict(counts)
            self.look_soon()

    def avoid(self, partition: TopicPartition) -> None:
        """Avoid claiming the partition for a while."""
        self._not_before[partition] = self._clock.monotonic() + RETRY_DELAY
        self._look_after(RETRY_DELAY)

    def leave_out(self, partitions: Collection[TopicPartition]) -> None:
        """Release these at once and claim none of them until the next call.

        Others take them when the group has settled; they are given back without waiting for that.
        """
        self._left_out = frozenset(partitions)
        left_out = self._with_tasks(self._left_out)
        for holding in self._claim_table.in_state(ClaimState.HELD):
            if holding.claim.partition in left_out:
                self.request_release(holding)
        self.look_soon()

    def avoided(self) -> frozenset[TopicPartition]:
        """Return the partitions that are not to be claimed now."""
        now = self._clock.monotonic()
        self._not_before = {p: due for p, due in self._not_before.items() if due > now}
        return self._left_out.union(self._not_before)

    def _with_tasks(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions, and where the member works in tasks what else is of these."""
        if not self.together:
            return frozenset(partitions)
        tasks = {partition.partition for partition in partitions}
        rest = (TopicPartition(topic, number) for topic in self._counts for number in tasks)
        return frozenset(partitions).union(rest)

    # --- looking ----------------------------------------------------------------------------

    def look_if_due(self, lease: Lease) -> None:
        """Read the group and move what is to move."""
        started = self._clock.monotonic()
        if started < self.next_look:
            return
        self.next_look = started + self._settings.resync_interval
        if started >= self._next_verification:
            self.verify()
        view = self._registry.members()
        owners = self._owners()
        self._last_look_took = self._clock.monotonic() - started
        if self._registry.member not in view.members:
            # proves our node or raises; what we read was then older than our node
            self._registry.heartbeat()
            self.look_soon()
            return
        self._reconcile_owners(owners)
        partitions = all_partitions(self._counts)
        former = self._registry.former([p for p in partitions if p not in owners])
        allocation = allocate(view.members, partitions, self._names(owners), former)
        wanted = allocation.of(self._registry.member) - self._with_tasks(self._left_out)
        mine = wanted - owners.keys()
        whole = wanted if allocation.by_task else frozenset()
        wait = self._debounce.observe(view.members)
        if wait > 0:
            self._look_after(wait)
            self._claim(self._find_urgent(mine, former, view), lease, whole)
        else:
            self._returning = False
            for holding in self._claim_table.in_state(ClaimState.HELD):
                if holding.claim.partition not in wanted:
                    self.request_release(holding)
            self._claim(mine, lease, whole)
        # who has nothing yet may be given something once the group has settled
        if wait <= 0 or wanted:
            self._assess(wanted)
        self._report_summary(view, allocation, owners)

    def _find_urgent(
        self,
        free: Collection[TopicPartition],
        former: Mapping[TopicPartition, str],
        view: GroupView,
    ) -> set[TopicPartition]:
        """Return what is claimed before the group has settled: nothing is to be put off by that.

        Of a member that has just joined this is what was its own last: nothing moves. Others go on
        with free tasks that they are warm for: should the settled group have another member for
        one, it stays until that is warm as well, and such a move takes less than to wait does.
        """
        me = self._registry.member
        if self._returning:
            return {partition for partition in free if former.get(partition) == me}
        warm = view.members[me].warm or frozenset()
        return {partition for partition in free if partition.partition in warm}

    def _assess(self, wanted: Collection[TopicPartition]) -> None:
        """Record whether every partition that is assigned to this member is claimed."""
        missing = sorted(p for p in wanted if p not in self._claim_table)
        if not missing:
            assigned = AssignmentState.COMPLETE if wanted else AssignmentState.NONE
            if self.assignment in _UNSETTLED:
                self._log.info("assignment_complete", claims=len(wanted))
            self.assignment = assigned
        elif self.assignment is AssignmentState.PENDING:
            left = self._joined_at + ASSIGNMENT_LIMIT - self._clock.monotonic()
            if left > 0:
                self._look_after(left)
                return
            self.assignment = AssignmentState.OVERDUE
            self._log.warning("assignment_overdue", partitions=[str(p) for p in missing])

    def verify(self) -> None:
        """Drop claims whose nodes are not as we left them: no write under them would count.

        A claim that is just being raised is left out, because its epoch node may have changed.
        """
        self._next_verification = self._clock.monotonic() + self._settings.resync_interval
        by_claim = {
            holding.claim: holding
            for holding in self._claim_table.in_state(*WITH_CHANNEL)
            if holding.raise_to is None
        }
        for claim in self._registry.verify(by_claim):
            self.lose(by_claim[claim], LossReason.NODE_CHANGED)

    def _owners(self) -> dict[TopicPartition, Owner]:
        owners: dict[TopicPartition, Owner] = {}
        held = {holding.claim.partition.topic for holding in self._claim_table}
        held |= {partition.topic for partition in self._claim_table.unreleased}
        for topic in sorted(held | self._counts.keys()):
            self._keep_alive()
            for number, owner in self._registry.owners(topic).items():
                owners[TopicPartition(topic, number)] = owner
        return owners

    def _names(self, owners: Mapping[TopicPartition, Owner]) -> dict[TopicPartition, str]:
        """Return owners by name; one that is not to be reckoned with gets a name no member has."""
        me = self._registry.member
        return {
            partition: (owner.member or "") if owner.ours is (owner.member == me) else ""
            for partition, owner in owners.items()
        }

    def _reconcile_owners(self, owners: Mapping[TopicPartition, Owner]) -> None:
        """Drop claims without their owner node, and delete our owner nodes without a claim.

        A claim that is just being raised may have written its node already.
        """
        for holding in self._claim_table.in_state(*WITH_CHANNEL):
            owner = owners.get(holding.claim.partition)
            claim = holding.claim
            raised = replace(claim, epoch=holding.raise_to or claim.epoch)
            if owner is None or not (owner.stands_for(claim) or owner.stands_for(raised)):
                self.lose(holding, LossReason.NODE_CHANGED)
        self._claim_table.unreleased.clear()
        for partition, owner in owners.items():
            if owner.ours and partition not in self._claim_table:
                cleared = self._registry.discard(partition)
                if not cleared:
                    self._claim_table.unreleased.add(partition)
                log.warning("orphan_claim_found", partition=str(partition), cleared=cleared)
                self.look_soon()

    # --- moving -----------------------------------------------------------------------------

    def request_release(self, holding: HeldClaim) -> None:
        """Ask the channel to finish with a claim, and with all others of its task."""
        self._request_release(holding)
        self.release_rest(holding.claim.partition)

    def _request_release(self, holding: HeldClaim) -> None:
        if holding.state is not ClaimState.HELD:
            return
        holding.release()
        log.info("release_requested", partition=str(holding.claim.partition))
        self._listener.release_requested(holding.claim)

    def release_rest(self, partition: TopicPartition) -> None:
        """Ask the channel for the other claims of a task of which one ends or cannot be had.

        A part of a task is of no use here, and the next member of the task needs all of it, which
        may be one that we cannot read and our map does not know.
        """
        if self.together:
            for holding in self._claim_table.of(self._with_tasks([partition]) - {partition}):
                self._request_release(holding)

    def _claim(
        self,
        partitions: Collection[TopicPartition],
        lease: Lease,
        whole: Collection[TopicPartition],
    ) -> None:
        """Claim what may be claimed now, and of the tasks in ``whole`` none without its rest."""
        now = self._clock.monotonic()
        # by number, so that the parts of a task are claimed in one portion
        due = [p for p in sorted(partitions, key=_by_number) if p not in self._claim_table]
        waiting = [self._not_before[p] for p in due if self._not_before.get(p, now) > now]
        if waiting:
            self._look_after(min(waiting) - now)
        due = [p for p in due if self._not_before.get(p, now) <= now]
        held = {h.claim.partition for h in self._claim_table.in_state(ClaimState.HELD)}
        halves = {p.partition for p in set(whole).difference(due, held)}
        unfit = halves | self._ending_tasks()
        due = [p for p in due if p.partition not in unfit]
        for start in range(0, len(due), AT_ONCE):
            self._keep_alive()
            if not lease.valid():
                self.look_soon()
                return
            results = self._registry.claim(due[start : start + AT_ONCE], lease)
            for partition, result in results.items():
                self._handle_claim(partition, result)
        for partition in due:
            if self._not_before.get(partition, now) > now:
                self.release_rest(partition)

    def _ending_tasks(self) -> set[int]:
        """Return the tasks of which a claim is still to end, whether or not the group has tasks.

        Its end asks for the rest: a part claimed before would be given back, and the next one too.
        """
        if not self.together:
            return set()
        return {
            holding.claim.partition.partition
            for holding in self._claim_table
            if holding.state is not ClaimState.HELD
        }

    def _handle_claim(self, partition: TopicPartition, result: Claim | ClaimRefusal) -> None:
        if isinstance(result, Claim):
            self._not_before.pop(partition, None)
            self._claim_table.add(result)
            clean_end = None if result.previous is None else result.previous.clean_end
            log.info("partition_claimed", **_fields(result), clean_end=clean_end)
            self._listener.claimed(result)
            return
        log.info("claim_refused", partition=str(partition), reason=result.value)
        if result is ClaimRefusal.FOREIGN:
            self.avoid(partition)
        else:
            self.look_soon()

    def give_back(self, state: ClaimState) -> bool:
        """Release claims that the channel has ended in the registry, some at a time.

        Returns whether there may be more in that state.
        """
        ended = self._claim_table.in_state(state)[:AT_ONCE]
        if not ended:
            return False
        clean = state is ClaimState.ENDED_CLEANLY
        results = self._registry.release([holding.claim for holding in ended], clean=clean)
        for holding in ended:
            self._claim_table.remove(holding)
            refused = results[holding.claim.partition] is Release.REFUSED
            log.info("claim_released", **_fields(holding.claim), clean_end=clean, refused=refused)
        self.look_soon()
        return True

    def lose(self, holding: HeldClaim, reason: LossReason) -> None:
        """Remove a claim and report its loss to the channel; release the rest of its task."""
        self._drop(holding, reason)
        self.release_rest(holding.claim.partition)

    def lose_all(self, reason: LossReason) -> None:
        """Remove every claim that the channel has."""
        for holding in self._claim_table.in_state(*WITH_CHANNEL):
            self._drop(holding, reason)

    def _drop(self, holding: HeldClaim, reason: LossReason) -> None:
        """Remove a claim and tell the channel; its node stays until ``_reconcile_owners``."""
        self._claim_table.remove(holding)
        if reason is not LossReason.SESSION_LOST:
            self._claim_table.unreleased.add(holding.claim.partition)
        log.warning("claim_ended", **_fields(holding.claim), reason=reason.value)
        self._listener.claim_lost(holding.claim, reason)
        self.look_soon()

    # --- telling ----------------------------------------------------------------------------

    def _report_summary(
        self,
        view: GroupView,
        allocation: Allocation,
        owners: Mapping[TopicPartition, Owner],
    ) -> None:
        present = {p: owner.member for p, owner in sorted(owners.items())}
        summary = RebalanceSummary(
            members=tuple(sorted(view.members)),
            mine=allocation.of(self._registry.member),
            owners=present | {c.partition: c.member for c in self._claim_table.claims()},
            unowned=allocation.unowned,
            pending=frozenset(
                p for p in allocation.owners if p not in owners and p not in self._claim_table
            ),
            contended=allocation.contended,
            missing=allocation.missing,
            foreign=allocation.foreign,
            modes=allocation.modes,
            problems=view.problems,
            without_tasks=allocation.without_tasks,
            member=self._registry.member,
            active=frozenset(name for name, info in view.members.items() if not info.draining),
            goal=allocation.goal,
            without_warm=allocation.without_warm,
        )
        if summary != self._said:
            self._said = summary
            self._listener.rebalanced(summary)


def _by_number(partition: TopicPartition) -> tuple[int, str]:
    return partition.partition, partition.topic


def _fields(claim: Claim) -> dict[str, Any]:
    """Return the fields by which a log line names a claim."""
    topic, number = claim.partition
    return {"topic": topic, "partition": number, "epoch": claim.epoch}
