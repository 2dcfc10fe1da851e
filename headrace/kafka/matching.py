"""From patterns to the topics that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clock import Deadline
    from headrace.config.subscription import Subscription
    from headrace.kafka.ports import TopicCatalog, TopicInfo


def matching(
    catalog: TopicCatalog, subscription: Subscription, deadline: Deadline
) -> Mapping[str, TopicInfo]:
    """Return the topics that a pattern matches, those for internal use left out. Blocks.

    The brokers are asked only where there are patterns. They name those topics that this user may
    describe.

    Raises:
        KafkaUnavailableError: no broker answered by the deadline.
    """
    if not subscription.patterns:
        return {}
    found = sorted(name for name in catalog.names(deadline) if subscription.matches(name))
    described = catalog.describe(found, deadline)
    return {name: info for name, info in described.items() if not info.internal}
