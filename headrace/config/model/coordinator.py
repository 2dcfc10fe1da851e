"""The ``coordinator`` of a channel: which partitions its member takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from headrace.config.kinds.partitions import Partitions
from headrace.config.kinds.scalars import Count
from headrace.config.kinds.text import Topic
from headrace.config.kinds.units import Pause, Span
from headrace.config.model.base import Cold, Hot, Section


class CoordinatorBase(Section):
    """What all coordinators have."""

    type: Cold[str]
    """Which coordinator this is."""

    rebalance_delay: Hot[Pause] = 0.5
    """How long a change in the group is left to settle before partitions move."""

    safety_poll: Hot[Span] = 15.0
    """How often the group is looked at although no change was reported."""


class DynamicCoordinatorConfig(CoordinatorBase):
    """The members of a group share the partitions of its topics evenly."""

    type: Cold[Literal["dynamic"]] = "dynamic"
    """This coordinator."""

    weight: Cold[Count] = 1
    """This member's share against the other members'."""


class FixedCountCoordinatorConfig(CoordinatorBase):
    """The member takes a fixed number of partitions of each topic."""

    type: Cold[Literal["fixed_count"]] = "fixed_count"
    """This coordinator."""

    partitions_per_topic: Cold[Count]
    """How many partitions of each topic to own."""


class StaticCoordinatorConfig(CoordinatorBase):
    """The member takes the partitions that are listed."""

    type: Cold[Literal["static"]] = "static"
    """This coordinator."""

    partitions: Cold[Annotated[Mapping[Topic, Partitions], Field(min_length=1)]]
    """The partitions of each topic, as numbers and ranges."""


CoordinatorConfig = Annotated[
    DynamicCoordinatorConfig | FixedCountCoordinatorConfig | StaticCoordinatorConfig,
    Field(discriminator="type"),
]
