"""Points in time, as people write them on a command line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def parse_moment(text: str) -> int:
    """Return the milliseconds since the Unix epoch, as Kafka counts them.

    Takes ISO 8601, as in 2013-01-01, 2013-01-01T05:00:00Z or 2013-01-01T05:00:00.250+02:00.
    Without an offset it is UTC.

    Raises:
        ValueError: it is something else, or before 1970.
    """
    written = f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2013-01-01T05:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    if moment < _EPOCH:
        raise ValueError(f"{text!r} is before 1970; write a time such as 2013-01-01T05:00:00Z")
    return (moment - _EPOCH) // _MILLISECOND


def format_moment(milliseconds: int) -> str:
    """Return the time in UTC, to the millisecond where it has any."""
    moment = _EPOCH + milliseconds * _MILLISECOND
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return f"{moment.replace(tzinfo=None).isoformat(timespec=precision)}Z"
