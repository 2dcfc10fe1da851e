"""Where a reset goes: what ``--to`` may say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headrace.config.kinds.moments import parse_moment

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
    """What becomes of a sink's output of records that are read again."""

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
