"""Times as the API has them."""

from __future__ import annotations

from datetime import datetime, timezone


def moment(seconds: float) -> datetime:
    """Return a time in UTC, to the millisecond; ``seconds`` are since the epoch."""
    return datetime.fromtimestamp(round(seconds, 3), timezone.utc)
