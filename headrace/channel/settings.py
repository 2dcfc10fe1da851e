"""The settings a channel runs with now: its configuration, and what its parts read from that."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config import ChannelConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a batch's size, and of the time (seconds) its first record may wait for it."""

    max_records: int
    max_bytes: int
    linger: float

    def bounded(self, max_records: int | None, max_bytes: int | None) -> Limits:
        """Return limits that are within these as well."""
        records = min(max_records or self.max_records, self.max_records)
        return Limits(records, min(max_bytes or self.max_bytes, self.max_bytes), self.linger)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with jitter; ``first`` and ``most`` are seconds.

    The wait before attempt n+1 lies between half of and all of ``first * 2**(n-1)``, and never
    above ``most``. The jitter keeps partitions that failed together from retrying together.
    """

    first: float
    most: float

    def seconds(self, attempts: int) -> float:
        """Return the wait after ``attempts`` failed attempts (1 or more)."""
        ceiling = min(self.most, self.first * 2.0 ** min(attempts - 1, 62))
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """One configuration, and values derived from it that are read for every batch."""

    config: ChannelConfig
    limits: Limits
    max_in_flight: int
    backoff: Backoff

    @classmethod
    def of(cls, config: ChannelConfig) -> ChannelSettings:
        """Derive the values."""
        batch, retry = config.batch, config.retry
        return cls(
            config,
            Limits(batch.max_records, batch.max_bytes, batch.linger),
            config.max_in_flight,
            Backoff(retry.backoff, retry.max_backoff),
        )


class LiveSettings:
    """The settings of a channel as its parts read them whenever they need them.

    Read on any thread; who reads ``now`` once has values that belong together. Replaced by the
    channel only.
    """

    __slots__ = ("now",)

    def __init__(self, config: ChannelConfig) -> None:
        self.now = ChannelSettings.of(config)

    def replace(self, config: ChannelConfig) -> None:
        """Replace the configuration by ``config``."""
        self.now = ChannelSettings.of(config)

    @property
    def config(self) -> ChannelConfig:
        """Return the configuration at this moment."""
        return self.now.config
