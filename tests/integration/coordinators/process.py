"""A member in a process of its own: prints each claim as a line of JSON, until it is killed.

Arguments: hosts, chroot, state directory, member, session time-out in seconds, partitions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace.config import DynamicCoordinatorConfig
from headrace.coordinators.coordinator import Coordinator
from headrace.coordinators.member_info import MemberInfo
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import Deadline
from headrace.zookeeper.identity import Identity
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings

if TYPE_CHECKING:
    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.core.errors import HeadraceError

TOPIC = "orders"


class Printer:
    """A listener that prints claims and gives back what it is asked for."""

    def __init__(self) -> None:
        self.coordinator: Coordinator | None = None

    def claimed(self, claim: Claim) -> None:
        """Print it."""
        _print(claimed=claim.partition.partition, epoch=claim.epoch)

    def release_requested(self, claim: Claim) -> None:
        """Give it back."""
        assert self.coordinator is not None
        self.coordinator.released(claim, clean=True)

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """Print it."""
        _print(lost=claim.partition.partition, reason=reason.value)

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        """Do nothing: no test here asks for a higher epoch."""

    def suspended(self) -> None:
        """Do nothing."""

    def resumed(self) -> None:
        """Do nothing."""

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """Do nothing."""

    def failed(self, error: HeadraceError) -> None:
        """Print it."""
        _print(failed=str(error))


def _print(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Take part until the standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    hosts, chroot, state, member, session_timeout, partitions = sys.argv[1:]
    identity = Identity(Path(state), member)
    identity.acquire()
    session = ZooKeeperSession(ZooKeeperSettings(hosts, chroot, float(session_timeout)), identity)
    session.start()
    printer = Printer()
    coordinator = Coordinator(
        ZooKeeperRegistry(session, "group", member),
        printer,
        MemberInfo(frozenset({TOPIC})),
        DynamicCoordinatorConfig(rebalance_delay="200ms"),
    )
    printer.coordinator = coordinator
    coordinator.set_partitions({TOPIC: int(partitions)})
    coordinator.start()
    sys.stdin.read()
    coordinator.stop(Deadline.after(10))
    session.close(Deadline.after(10))
    identity.release()


if __name__ == "__main__":
    main()
