"""One member of a group: it joins, gives signs of life, claims, gives back and leaves.

A state machine without a thread: events come in as calls, ``run_once`` does what is due and says
when it wants to be called next. ``headrace.coordinators.coordinator`` drives it; tests drive it
with a clock of their own.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.claims import WITH_CHANNEL, ClaimState, ClaimTable, LossReason
from headrace.coordinators.errors import Holder, MemberExistsError, MembershipLostError
from headrace.coordinators.lease import HEARTBEAT_SHARE, Lease
from headrace.coordinators.member_info import ENDED, TRANSITIONS, MemberState
from headrace.coordinators.rebalance import Rebalance
from headrace.core.errors import FatalError, HeadraceError, StartError
from headrace.zookeeper.errors import ZooKeeperUnavailableError
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.models.channel import CoordinatorBase
    from headrace.coordinators.claims import Claim, HeldClaim
    from headrace.coordinators.member_info import MemberInfo
    from headrace.coordinators.rebalance import Listener
    from headrace.coordinators.registry import Membership
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from headrace.core.clock import Clock
    from headrace.core.records import TopicPartition

log = structlog.get_logger(__name__)

LONGEST_PAUSE = 1.0
"""Seconds between attempts, at most, while ZooKeeper does not answer."""


class GroupMembership:
    """One member. All methods are for one thread and block as long as the registry does."""

    def __init__(
        self,
        registry: ZooKeeperRegistry,
        listener: Listener,
        info: MemberInfo,
        settings: CoordinatorBase,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._session = registry.session
        self._listener = listener
        self._info = info
        self._published: MemberInfo | None = None
        self._clock = clock
        self._log = log.bind(member=registry.member)
        self._claim_table = ClaimTable()
        self._withdrawing = False
        self._left_node = False
        self._membership: Membership | None = None
        self._lease: Lease | None = None
        self._pinged_since = -inf
        self._first_holder: Holder | None = None
        self._give_up_at = 0.0
        self._next_try = 0.0
        self._next_beat = 0.0
        self.state = MemberState.JOINING
        self.failure: HeadraceError | None = None
        self.last_progress = clock.monotonic()
        self.rebalance = Rebalance(
            registry,
            listener,
            self._claim_table,
            settings,
            clock,
            keep_alive=self._keep_alive,
            together=info.together,
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Return the claims that are not given back yet."""
        return tuple(self._claim_table.claims())

    @property
    def still_claimed(self) -> frozenset[TopicPartition]:
        """Return the partitions that no other member can take yet, as far as we know: our nodes are
        there.
        """
        return frozenset(self._claim_table.unreleased.union(c.partition for c in self.claims))

    def _become(self, state: MemberState) -> None:
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise FatalError(f"a member cannot go from {self.state} to {state}")
        self.state = state

    # --- events -----------------------------------------------------------------------------

    def session_changed(self, state: SessionState) -> None:
        """Handle a change of the session's state."""
        if self.state in ENDED:
            return
        if state is SessionState.CLOSED:
            self.fail(
                FatalError(
                    f"member {self._registry.member!r}: the ZooKeeper session is closed for good; "
                    "the log of kazoo says why. Start the process again"
                )
            )
        elif state is SessionState.SUSPENDED:
            self._suspend("connection lost")
        elif state is SessionState.LOST or self._other_session():
            self._rejoin(LossReason.SESSION_LOST)
        else:
            self._next_beat = self._clock.monotonic()

    def update(self, info: MemberInfo, settings: CoordinatorBase | None = None) -> None:
        """Publish ``info`` from now on; whether the member drains, and is warm, stays as it is."""
        if info.mode is not self._info.mode:
            self._log.info("mode_changed", mode=info.mode.value)
        self._info = replace(info, draining=self._info.draining, warm=self._info.warm)
        self.rebalance.together = info.together
        if settings is not None:
            self.rebalance.keep_pace(settings)

    def set_warm(self, tasks: frozenset[int]) -> None:
        """Publish for which tasks of others the member is warm."""
        self._info = replace(self._info, warm=tasks)

    def drain(self) -> None:
        """Ask for everything back and take nothing more."""
        self._info = replace(self._info, draining=True)
        for holding in self._claim_table.in_state(ClaimState.HELD):
            self.rebalance.request_release(holding)

    def withdraw(self) -> None:
        """Ask for everything back, then leave the group until ``undrain``."""
        self._withdrawing = True
        self.drain()

    def undrain(self) -> None:
        """Rejoin the group."""
        self._withdrawing = False
        self._info = replace(self._info, draining=False)
        if self.state is MemberState.AWAY:
            self._next_try = self._clock.monotonic()
            self._become(MemberState.JOINING)

    def released(self, claim: Claim, *, clean: bool) -> None:
        """Handle that the channel has finished with a claim."""
        self._end_claim(claim, ClaimState.ENDED_CLEANLY if clean else ClaimState.ABANDONED)

    def abandoned(self, claim: Claim) -> None:
        """Handle that the channel could not start a claim: avoid the partition for a while."""
        if self._end_claim(claim, ClaimState.ABANDONED):
            self.rebalance.avoid(claim.partition)

    def _end_claim(self, claim: Claim, state: ClaimState) -> bool:
        holding = self._claim_table.find(claim)
        if holding is None or holding.state not in WITH_CHANNEL:
            log.debug("claim_already_ended", partition=str(claim.partition), epoch=claim.epoch)
            return False
        holding.end(claim, state)
        self.rebalance.release_rest(claim.partition)
        return True

    def raise_epoch(self, claim: Claim, at_least: int) -> None:
        """Raise a claim's epoch; the listener gets the new claim."""
        holding = self._claim_table.find(claim)
        if holding is not None and holding.state in WITH_CHANNEL:
            holding.want_epoch(at_least)

    def rejoin(self, claim: Claim) -> None:
        """Start a new membership: nothing can be committed in that of ``claim`` any more."""
        membership = self._membership
        if membership is None or membership.epoch != claim.member_epoch or self.state in ENDED:
            return
        self._log.warning("member_fenced", member_epoch=membership.epoch)
        self._rejoin(LossReason.FENCED)

    # --- running ----------------------------------------------------------------------------

    def run_once(self) -> float:
        """Run what is due. Returns the seconds after which to call again at the latest."""
        self.last_progress = self._clock.monotonic()
        try:
            self._do_what_is_due()
        except ZooKeeperUnavailableError as error:
            self._suspend(str(error))
        except MembershipLostError as error:
            self._log.warning("membership_lost", reason=str(error))
            self._rejoin(LossReason.MEMBERSHIP_LOST)
        self.last_progress = self._clock.monotonic()
        return self._pause()

    def _do_what_is_due(self) -> None:
        if self.state is MemberState.JOINING and self._withdrawing and not self._left_node:
            self._go_away()
        if self.state is MemberState.JOINING:
            self._join_if_due()
        if self.state in {MemberState.ACTIVE, MemberState.SUSPENDED}:
            self._keep_alive()
        if self.state is MemberState.ACTIVE:
            self._settle_accounts()
            assert self._lease is not None, "an active member has a lease"
            if self._lease.valid():
                self.rebalance.look_if_due(self._lease)
            if self._withdrawing and not self.still_claimed:
                self._registry.leave()
                self._go_away()

    def _go_away(self) -> None:
        """Leave the group until ``undrain`` is called."""
        self._membership = self._lease = self._published = None
        self._become(MemberState.AWAY)
        self._log.info("member_drained")

    def _pause(self) -> float:
        now = self._clock.monotonic()
        if self.state is MemberState.JOINING:
            return max(0.0, self._next_try - now)
        if self.state is MemberState.AWAY:
            return self._session.session_timeout / 3
        due = self._next_beat
        if self._lease is not None and self._claim_table.in_state(*WITH_CHANNEL):
            due = min(due, now + self._lease.remaining())
        if self.state is MemberState.ACTIVE and self._lease is not None and self._lease.valid():
            due = min(due, self.rebalance.next_look)
        return max(0.0, due - now)

    # --- membership -------------------------------------------------------------------------

    def _other_session(self) -> bool:
        """Return whether we are connected with another session than the one that we joined in."""
        membership = self._membership
        return self._session.session_id not in {None, membership and membership.session_id}

    def _join_if_due(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_try:
            return
        self._next_try = now + min(LONGEST_PAUSE, self._session.session_timeout / 6)
        try:
            membership = self._registry.join(self._info)
        except MemberExistsError as error:
            self._wait_for_name(error)
            return
        except ZooKeeperUnavailableError as error:
            self._log.warning("join_failed", reason=str(error))
            return
        self._first_holder = None
        self._published = self._info
        self._membership = membership
        self._begin_lease(now)
        self._left_node = False
        self.rebalance.begin()
        self._become(MemberState.ACTIVE)
        self._log.info("member_joined", member_epoch=membership.epoch)

    def _wait_for_name(self, error: MemberExistsError) -> None:
        """Wait for our own former session to end; a holder that gives signs of life is not it."""
        now = self._clock.monotonic()
        if self._first_holder is None or error.holder.beats < self._first_holder.beats:
            self._first_holder = error.holder
            # the servers may take up to twice a session's time-out to notice its end
            self._give_up_at = now + 2 * self._session.session_timeout
            self._log.info("instance_id_in_use", reason=str(error))
        alive = error.holder.beats > self._first_holder.beats
        if alive or now >= self._give_up_at:
            self.fail(StartError(str(error)))

    def _keep_alive(self) -> None:
        """End what the lease no longer covers; renew it when it is time."""
        self.last_progress = now = self._clock.monotonic()
        assert self._lease is not None, "a member of the group has a lease"
        self._lease.reconnected(self._session.session_timeout, self._session.connected_at)
        if self._lease.ended():
            self._lose_all(LossReason.LEASE_OVER)
        if now < self._next_beat:
            return
        self._next_beat = now + self._retry_pause()
        self._registry.heartbeat()
        timeout, connected_at = self._session.session_timeout, self._session.connected_at
        if self._lease.confirm(now, timeout, connected_at):
            self._plan_heartbeat(now, self._lease)
        else:
            self._lose_all(LossReason.LEASE_OVER)
            self._begin_lease(now)
            self.rebalance.look_soon()
        if self.state is MemberState.SUSPENDED:
            self._resume()

    def _begin_lease(self, sent_at: float) -> None:
        """Start a lease with a write that is acknowledged now."""
        timeout, connected_at = self._session.session_timeout, self._session.connected_at
        self._lease = Lease.begin(timeout, self._clock, sent_at, connected_at, self._pinged_since)
        self._plan_heartbeat(sent_at, self._lease)

    def _plan_heartbeat(self, last: float, lease: Lease) -> None:
        """Schedule the next heartbeat while a young, short lease has time left for its answer."""
        pause = self._session.session_timeout * HEARTBEAT_SHARE
        left = lease.remaining()
        self._next_beat = last + (min(pause, left / 3) if left else pause)

    def _retry_pause(self) -> float:
        """Return the seconds from a failed heartbeat to the next."""
        return min(LONGEST_PAUSE, self._session.session_timeout / 12)

    def _suspend(self, reason: str) -> None:
        if self.state is not MemberState.ACTIVE:
            return
        self._become(MemberState.SUSPENDED)
        again = self._clock.monotonic() + self._retry_pause()
        self._next_beat = min(self._next_beat, again)
        self._log.warning("session_suspended", reason=reason)
        self._listener.suspended()

    def _resume(self) -> None:
        """Resume the claims whose nodes are as we left them."""
        self.rebalance.verify()
        self._become(MemberState.ACTIVE)
        self._log.info("session_resumed", claims=len(self._claim_table))
        self._listener.resumed()
        self.rebalance.look_soon()

    def _rejoin(self, reason: LossReason) -> None:
        """Drop the former membership with all its claims, and join again."""
        self._lose_all(reason)
        # where the session lives on, our nodes do: they are cleared away in the next membership
        self._left_node = reason is not LossReason.SESSION_LOST
        if self.state is MemberState.SUSPENDED:
            self._listener.resumed()
        self._membership = self._lease = None
        self._next_try = self._clock.monotonic()
        self._become(MemberState.JOINING)

    # --- claims -----------------------------------------------------------------------------

    def _lose_all(self, reason: LossReason) -> None:
        """End the lease and drop every claim; the channel is told of each (``claim_lost``)."""
        if self._lease is not None:
            if self._lease.ended():
                # it may be over because the process stood still, and its client with it
                self._pinged_since = self._clock.monotonic()
            self._lease.break_()
        self.rebalance.lose_all(reason)

    def _settle_accounts(self) -> None:
        """Publish changed member data, and pass the channel's changes of claims to the registry."""
        info = replace(self._info, cooldown=self.rebalance.avoided())
        if self._published != info:
            # before anything is given back, so that it is not assigned to us once more
            self._registry.publish(info)
            self._published = info
            self.rebalance.look_soon()
        for holding in self._claim_table.in_state(*WITH_CHANNEL):
            self._keep_alive()
            # it may have been lost with the lease just now
            if holding.raise_to is not None and self._claim_table.find(holding.claim) is holding:
                self._raise_claim(holding, holding.raise_to)
        for _ in self._given_back():
            self._keep_alive()

    def _given_back(self) -> Iterator[None]:
        """Release what the channel has ended; yield for a heartbeat before each portion."""
        for state in (ClaimState.ENDED_CLEANLY, ClaimState.ABANDONED):
            yield
            while self.rebalance.give_back(state):
                yield

    def _raise_claim(self, holding: HeldClaim, at_least: int) -> None:
        new = self._registry.raise_epoch(old := holding.claim, at_least)
        if new is None:
            self.rebalance.lose(holding, LossReason.NODE_CHANGED)
            return
        holding.raised(new)
        log.info("epoch_raised", partition=str(new.partition), old=old.epoch, new=new.epoch)
        self._listener.epoch_raised(old, new)

    # --- the end ----------------------------------------------------------------------------

    def leave(self) -> tuple[Claim, ...]:
        """Leave the group. Returns the claims that were not given back by the channel.

        Those are deleted without a clean end, after their lease: nothing can be done under them.
        """
        if self.state in ENDED:
            return ()
        late = [holding.claim for holding in self._claim_table.in_state(*WITH_CHANNEL)]
        still_claimed = sorted(self._claim_table.unreleased)
        self._lose_all(LossReason.STOPPED)
        try:
            for _ in self._given_back():
                pass
            self._registry.release(late, clean=False)
            for partition in still_claimed:
                self._registry.discard(partition)
            self._registry.leave()
        except HeadraceError as error:
            # the nodes vanish with the session
            self._log.warning("leave_incomplete", reason=str(error))
        self._become(MemberState.LEFT)
        self._log.info("member_left", unreleased=len(late))
        return tuple(late)

    def fail(self, error: HeadraceError) -> None:
        """End without the registry's help."""
        if self.state in ENDED:
            return
        self._lose_all(LossReason.FAILED)
        self.failure = error
        self._become(MemberState.FAILED)
        self._log.error("coordinator_failed", reason=str(error))
        self._listener.failed(error)
