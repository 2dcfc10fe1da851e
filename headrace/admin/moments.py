"""Times as the API has them."""

from __future__ import annotations

from datetime import datetime, timezone

#: The last second that a ``datetime`` can say. Records may have any number for a time, and a
#: processor may wait for one.
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc).timestamp()


def moment(seconds: float) -> datetime:
    """Return a time in UTC, to the millisecond; ``seconds`` are since the epoch.

    What lies beyond the year 9999 is its end.
    """
    return datetime.fromtimestamp(min(round(seconds, 3), _LAST), timezone.utc)
