"""The thread that keeps one channel's partitions in step with its group, and its settings."""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING

import structlog

from headrace import config
from headrace.coordinators.member import GroupMembership
from headrace.coordinators.member_info import ENDED, AssignmentMode, MemberInfo, MemberState
from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import FatalError, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.config.models.channel import CoordinatorBase
    from headrace.coordinators.claims import Claim
    from headrace.coordinators.member_info import AssignmentState
    from headrace.coordinators.rebalance import Listener
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from headrace.core.records import TopicPartition
    from headrace.zookeeper.protocol import SessionState


log = structlog.get_logger(__name__)

LEAVE_SHARE = 0.2
"""Share of a stop's time that is kept for deleting our nodes."""


class Coordinator:
    """One per channel. All methods are safe on any thread.

    The commands only enqueue; what they lead to is told to the listener, on the coordinator's
    thread. ``start``, ``stop``, ``drain`` and ``wait_away`` are for the owner; the last three
    block until their deadline at most.
    """

    def __init__(
        self,
        registry: ZooKeeperRegistry,
        listener: Listener,
        info: MemberInfo,
        settings: CoordinatorBase | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._registry = registry
        self._member = GroupMembership(
            registry, listener, info, settings or config.DynamicCoordinatorConfig(), clock
        )
        self._commands: queue.Queue[Callable[[], object]] = queue.Queue()
        self._stop_by: Deadline | None = None
        self._late: tuple[Claim, ...] = ()
        self._claims: tuple[Claim, ...] = ()
        self._still_claimed: frozenset[TopicPartition] = frozenset()
        self._run_ended = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, name=f"coordinator-{registry.member}", daemon=True
        )

    # --- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start joining the group."""
        self._registry.watch(self._on_change)
        self._registry.session.listen(self._on_session)
        self._thread.start()

    def drain(self, deadline: Deadline) -> tuple[Claim, ...]:
        """Ask the channel for all claims and take no new ones, but stay a member.

        Returns the claims that were not given back by the deadline; their requests stand.
        """
        self._send(self._member.drain)
        drained = threading.Event()
        self._send(drained.set)
        self._wait(deadline, lambda: drained.is_set() and not self._claims)
        return self._claims

    def withdraw(self) -> None:
        """Ask the channel for all claims and leave the group, until ``undrain``."""
        self._send(self._member.withdraw)

    def wait_away(self, deadline: Deadline) -> bool:
        """Wait until the member has left after ``withdraw``; False if it has not in time."""
        return self._wait(deadline, lambda: self._member.state is MemberState.AWAY)

    def wait_given_back(self, partitions: Collection[TopicPartition], deadline: Deadline) -> bool:
        """Wait until others can take these; False if one is still claimed at the deadline.

        For partitions that were left out before: what was just being claimed then is waited for.
        """
        if not partitions or self._thread.ident is None:
            return True
        handled = threading.Event()
        self._send(handled.set)
        return self._wait(
            deadline, lambda: handled.is_set() and self._still_claimed.isdisjoint(partitions)
        )

    def undrain(self) -> None:
        """Rejoin the group after ``drain`` or ``withdraw``."""
        self._send(self._member.undrain)

    def leave_out(self, partitions: Collection[TopicPartition]) -> None:
        """Release these partitions and claim none of them until the next call; others may."""
        self._send(partial(self._member.rebalance.leave_out, frozenset(partitions)))

    def stop(self, deadline: Deadline) -> tuple[Claim, ...]:
        """Release everything, leave the group and end the thread.

        Returns the claims that the channel did not give back in time: they are lost without a
        clean end, also where the thread hangs, because their lease is broken then. Before ``start``
        and after an end there is nothing to do.
        """
        if self._thread.ident is None:
            return ()
        self._send(partial(self._begin_stop, deadline))
        self._thread.join(deadline.remaining)
        self._registry.session.unlisten(self._on_session)
        self._registry.watch(None)
        if self._thread.is_alive():
            log.warning("coordinator_stop_timed_out", member=self._registry.member)
            late = self._claims
            for claim in late:
                claim.lease.break_()
            return late
        return self._late

    # --- what it is doing -------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        """Return where the member stands with its group."""
        return self._member.state

    @property
    def assignment(self) -> AssignmentState:
        """Return how far the member has come to what the group's map gives it."""
        return self._member.rebalance.assignment

    @property
    def failure(self) -> HeadraceError | None:
        """Return what the coordinator ended with, None while it runs and after a stop."""
        return self._member.failure

    @property
    def last_beat(self) -> float:
        return self._member.last_progress

    @property
    def stall_timeout(self) -> float | None:
        """Return the seconds within which there has to be another: a session. None unless it runs.

        Without events there is one at least every sixth of a session; one that asks ZooKeeper
        several things may wait for each answer up to a quarter of it.
        """
        return self._registry.session.session_timeout if self._thread.is_alive() else None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Return the claims not given back, as of the last pass of the thread."""
        return self._claims

    # --- commands ---------------------------------------------------------------------------

    def released(self, claim: Claim, clean: bool) -> None:
        """Release a claim. ``clean``: everything delivered under it is committed."""
        self._send(partial(self._member.released, claim, clean=clean))

    def abandon(self, claim: Claim) -> None:
        """Release a claim that could not be started, and avoid its partition for a while."""
        self._send(partial(self._member.abandoned, claim))

    def raise_epoch(self, claim: Claim, at_least: int) -> None:
        """Raise the claim's epoch to ``at_least``: one more than the highest ever seen."""
        self._send(partial(self._member.raise_epoch, claim, at_least))

    def rejoin(self, claim: Claim) -> None:
        """Rejoin the group: nothing can be committed in the membership of ``claim``.

        All its claims are lost, and claimed again with a new member epoch.
        """
        self._send(partial(self._member.rejoin, claim))

    def set_partitions(self, counts: Mapping[str, int]) -> None:
        """Set the number of partitions of each topic, for all topics."""
        self._send(partial(self._member.rebalance.set_partitions, dict(counts)))

    def update(self, info: MemberInfo, settings: CoordinatorBase | None = None) -> None:
        """Publish another subscription, and keep another pace where ``settings`` are given.

        ``info.draining``, ``info.cooldown`` and ``info.warm`` are not looked at.
        """
        self._send(partial(self._member.update, info, settings))

    def set_warm(self, tasks: Collection[int]) -> None:
        """Publish for which tasks of others the member is warm; before ``start``: as it joins."""
        self._send(partial(self._member.set_warm, frozenset(tasks)))

    # --- thread -----------------------------------------------------------------------------

    def _on_change(self) -> None:
        self._send(self._member.rebalance.look_soon)

    def _on_session(self, state: SessionState) -> None:
        self._send(partial(self._member.session_changed, state))

    def _send(self, command: Callable[[], object]) -> None:
        self._commands.put(command)

    def _begin_stop(self, deadline: Deadline) -> None:
        self._member.drain()
        reserve = LEAVE_SHARE * deadline.remaining
        self._stop_by = Deadline(deadline.at - reserve, deadline.clock)

    def _run(self) -> None:
        try:
            # what is known already is published with the join, and not a moment later
            self._execute(0.0)
            while self._member.state not in ENDED:
                self._run_once()
        except HeadraceError as error:
            self._member.fail(error)
        except Exception as error:
            log.exception("coordinator_crashed", member=self._registry.member)
            self._member.fail(
                FatalError(
                    f"the coordinator of member {self._registry.member!r} crashed with {error!r}; "
                    "please report the log"
                )
            )
        finally:
            self._show()

    def _run_once(self) -> None:
        pause = self._member.run_once()
        if self._stop_by is not None:
            if not self._member.claims or self._stop_by.expired:
                self._late = self._member.leave()
                return
            pause = self._stop_by.at_most(pause)
        self._show()
        self._execute(pause)

    def _execute(self, pause: float) -> None:
        """Wait for commands and execute all that are there."""
        try:
            self._commands.get(timeout=pause)()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _show(self) -> None:
        with self._run_ended:
            self._claims, self._still_claimed = self._member.claims, self._member.still_claimed
            self._run_ended.notify_all()

    def _wait(self, deadline: Deadline, condition: Callable[[], bool]) -> bool:
        with self._run_ended:
            return self._run_ended.wait_for(
                lambda: condition() or self._member.state in ENDED, deadline.remaining
            )


def build_coordinator(
    channel: config.ChannelConfig, registry: ZooKeeperRegistry, listener: Listener, clock: Clock
) -> Coordinator:
    """Build what ``channel.coordinator`` describes, for the topics that are named."""
    info = member_info(channel, channel.subscription.names)
    return Coordinator(registry, listener, info, channel.coordinator, clock)


def member_info(channel: config.ChannelConfig, known: Collection[str]) -> MemberInfo:
    """Return what the member publishes for allocation, with the topics that it knows."""
    topics, together = frozenset(known), channel.together
    match channel.coordinator:
        case config.DynamicCoordinatorConfig(weight=weight):
            return MemberInfo(topics, AssignmentMode.DYNAMIC, weight=weight, together=together)
        case config.FixedCountCoordinatorConfig(partitions_per_topic=count):
            return MemberInfo(
                topics, AssignmentMode.FIXED_COUNT, partitions_per_topic=count, together=together
            )
        case config.StaticCoordinatorConfig(partitions=lists):
            chosen = {topic: tuple(sorted(numbers)) for topic, numbers in lists.items()}
            if together:
                # of tasks the first topic's list says all, whichever one others have first
                chosen = dict.fromkeys(topics, chosen[min(channel.topics)])
            return MemberInfo(topics, AssignmentMode.STATIC, lists=chosen, together=together)
