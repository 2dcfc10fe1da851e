"""What members tell one another: everything allocation may depend on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.records import TopicPartition


class Mode(Enum):
    """How a member wants its partitions chosen."""

    DYNAMIC = "dynamic"
    """An even share of each topic and of the whole."""
    FIXED_COUNT = "fixed_count"
    """A given number of partitions of each topic."""
    STATIC = "static"
    """Listed partitions, and no others."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What one member publishes for allocation.

    ``weight`` is its share relative to the other members' in dynamic mode, a whole number from 1.
    ``partitions_per_topic`` is the number in fixed count mode; ``lists`` names the partitions of
    each topic in static mode. A ``draining`` member is given nothing and gives back what it has.
    ``avoiding`` are partitions that it could not work on just now: others go first.
    """

    topics: frozenset[str]
    mode: Mode = Mode.DYNAMIC
    weight: int = 1
    partitions_per_topic: int = 0
    lists: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    draining: bool = False
    avoiding: frozenset[TopicPartition] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what other members could not read."""
        problems = []
        if self.weight < 1:
            problems.append(f"weight: {self.weight} is less than 1; weights are whole numbers")
        if self.partitions_per_topic < 0:
            problems.append(f"partitions_per_topic: {self.partitions_per_topic} is negative")
        if problems:
            raise ConfigError(problems)
