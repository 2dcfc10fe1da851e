"""From a channel's configuration to its coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import config
from headrace.coordinators.coordinator import Coordinator
from headrace.coordinators.members import MemberInfo, Mode
from headrace.coordinators.settings import CoordinatorSettings

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.clock import Clock
    from headrace.coordinators.listener import Listener
    from headrace.coordinators.registry import Registry


def build_coordinator(
    channel: config.ChannelConfig, registry: Registry, listener: Listener, clock: Clock
) -> Coordinator:
    """Build what ``channel.coordinator`` describes, for the topics that are named."""
    info = member_info(channel, channel.subscription.names)
    return Coordinator(registry, listener, info, pace(channel), clock)


def pace(channel: config.ChannelConfig) -> CoordinatorSettings:
    """Return how the coordinator paces itself."""
    return CoordinatorSettings(
        rebalance_delay=channel.coordinator.rebalance_delay,
        safety_poll=channel.coordinator.safety_poll,
    )


def member_info(channel: config.ChannelConfig, known: Collection[str]) -> MemberInfo:
    """Return what the member publishes for allocation, with the topics that it knows."""
    topics = frozenset(known)
    match channel.coordinator:
        case config.DynamicCoordinatorConfig(weight=weight):
            return MemberInfo(topics, Mode.DYNAMIC, weight=weight)
        case config.FixedCountCoordinatorConfig(partitions_per_topic=count):
            return MemberInfo(topics, Mode.FIXED_COUNT, partitions_per_topic=count)
        case config.StaticCoordinatorConfig(partitions=lists):
            chosen = {topic: tuple(sorted(numbers)) for topic, numbers in lists.items()}
            return MemberInfo(topics, Mode.STATIC, lists=chosen)
