"""How long to wait before the same thing is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass


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
