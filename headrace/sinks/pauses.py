"""Pauses before a transaction that gave way to another one is made again."""

from __future__ import annotations

import random

#: Seconds at first, and at the most. The pauses differ, so that two that gave way to each other do
#: not meet again.
_FIRST = 0.02
_LONGEST = 1.0


def pause_after(attempt: int) -> float:
    """Return the seconds to wait after an attempt, counted from 1."""
    ceiling = min(_LONGEST, _FIRST * 2.0 ** min(attempt, 16))
    return ceiling * random.uniform(0.0, 1.0)  # noqa: S311 - jitter, not a secret
