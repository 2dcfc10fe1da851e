"""What is done to two daemons under load: drawn from a seed, so that a run can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(Enum):
    """Everything that an operator does, and nothing that may repeat or lose a record."""

    HOLD = "hold"
    """A channel is paused, and keeps its partitions."""

    DRAIN = "drain"
    """A channel is paused, and gives its partitions to the other daemon."""

    HOLD_PARTITION = "hold_partition"
    """One partition is paused."""

    DRAIN_PARTITION = "drain_partition"
    """One partition is paused, and given to the other daemon."""

    SEEK = "seek"
    """A paused partition is set to where it stands."""

    HOT = "hot"
    """Hot values are changed in the file, and a reload is asked for."""

    HANG_UP = "hang_up"
    """Hot values are changed in the file, and SIGHUP is sent."""

    WATCHED = "watched"
    """Hot values are changed in the file, and the daemon finds that by itself."""

    WORKERS = "workers"
    """The number of worker threads is changed."""

    TOPIC = "topic"
    """A topic is added to a channel; the next time it is taken away again."""

    COORDINATOR = "coordinator"
    """A channel chooses its partitions in another way."""

    PROCESSOR = "processor"
    """A channel gets another processor, for which it starts anew."""

    CHANNEL = "channel"
    """A channel is added; the next time it is taken away again."""

    REJECTED = "rejected"
    """A file that cannot be used is put in place and found out; then the good one again."""

    LOG_LEVEL = "log_level"
    """More is logged for a while."""

    RESTART = "restart"
    """One daemon is stopped by SIGTERM and started again."""

    STOP = "stop"
    """One daemon is stopped through the API and started again."""


PAUSES = (Kind.HOLD, Kind.DRAIN, Kind.HOLD_PARTITION, Kind.DRAIN_PARTITION)

#: How many further operations a pause lasts, at most.
_LONGEST = 3


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that is done to one daemon.

    ``choice`` chooses among what there is to choose from, at random; ``lasts`` says of a pause for
    how many further operations it goes on.
    """

    kind: Kind
    target: int
    choice: int
    lasts: int = 0

    def __str__(self) -> str:
        lasts = f" for {self.lasts} more" if self.lasts else ""
        return f"{self.kind.value} of daemon {self.target + 1}{lasts}"


def draw(
    seed: int, number: int, *, daemons: int = 2, kinds: Sequence[Kind] = tuple(Kind)
) -> tuple[Operation, ...]:
    """Return so many operations, each kind as often as the others but for one."""
    source = random.Random(seed)  # noqa: S311 - to be had again, not to be secret
    bag: list[Kind] = []
    operations = []
    for _ in range(number):
        if not bag:
            bag = list(kinds)
            source.shuffle(bag)
        kind = bag.pop()
        lasts = source.randint(0, _LONGEST) if kind in PAUSES else 0
        operations.append(
            Operation(kind, source.randrange(daemons), source.randrange(1 << 16), lasts)
        )
    return tuple(operations)
