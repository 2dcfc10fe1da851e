"""Places in a log: moments, offsets, and what a move of offsets asks for.

The command line's help says the forms, so that this needs the standard library alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
        moment = moment.replace(tzinfo=UTC)
    if moment < _EPOCH:
        raise ValueError(f"{text!r} is before 1970; write a time such as 2013-01-01T05:00:00Z")
    return (moment - _EPOCH) // _MILLISECOND


def format_moment(milliseconds: int) -> str:
    """Return the time in UTC, to the millisecond where it has any."""
    moment = _EPOCH + milliseconds * _MILLISECOND
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return f"{moment.replace(tzinfo=None).isoformat(timespec=precision)}Z"


#: Offsets are 64-bit numbers with a sign.
_MAX_OFFSET = 2**63 - 1

FORMS = "earliest, latest, datetime:TIME, offset:N or shift-by:N"


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record there is."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end: only what comes later is read."""


@dataclass(frozen=True, slots=True)
class At:
    """The first record that is not older than ``timestamp``, in milliseconds since the epoch."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class To:
    """One offset for every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many offsets forward or, where negative, back."""

    count: int


Target: TypeAlias = Earliest | Latest | At | To | ShiftBy


class Replay(Enum):
    """The treatment of a sink's output of records that are read again."""

    APPEND = "append"
    """It stays, and what is made of the records now is stored besides."""

    REPLACE = "replace"
    """It is removed in the transaction that moves the offsets."""


def parse_target(text: str) -> Target:
    """Return what ``--to`` names.

    Raises:
        ValueError: it is none of the forms.
    """
    kind, _, value = text.partition(":")
    if text == "earliest":
        return Earliest()
    if text == "latest":
        return Latest()
    if kind == "datetime":
        return At(parse_moment(value))
    if kind == "offset" and re.fullmatch("[0-9]{1,19}", value) and int(value) <= _MAX_OFFSET:
        return To(int(value))
    if kind == "shift-by" and re.fullmatch("[+-]?[0-9]{1,19}", value):
        return ShiftBy(int(value))
    raise ValueError(f"{text!r} is not {FORMS}")
