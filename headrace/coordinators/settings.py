"""How a coordinator paces itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Times in seconds.

    ``rebalance_delay``: members must have been the same for so long before partitions move; when
    they keep changing, partitions move after ten times that all the same. ``safety_poll``: the
    group is read so often though no watch fired. ``retry_delay``: a partition that the channel
    abandoned, or that could not be claimed, is tried again after that.
    """

    rebalance_delay: float = 0.5
    safety_poll: float = 15.0
    retry_delay: float = 10.0
