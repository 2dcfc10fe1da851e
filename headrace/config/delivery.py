"""The guarantees of delivery."""

from __future__ import annotations

from enum import Enum


class DeliveryGuarantee(Enum):
    """A promise of how often the effect of a record takes place."""

    EXACTLY_ONCE = "exactly-once"
    """Once, also after a crash or a change of owner."""

    AT_LEAST_ONCE = "at-least-once"
    """Once; after a crash or a change of owner perhaps again."""

    AT_MOST_ONCE = "at-most-once"
    """Once; after a crash or a change of owner perhaps not at all."""
