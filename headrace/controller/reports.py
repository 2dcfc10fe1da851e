"""Reports of reloads: their outcome, and how desired and applied configuration compare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import ConfigChange


class ReloadOutcome(Enum):
    """The outcome of a reload."""

    APPLIED = "applied"
    """All that is different runs now."""
    UNCHANGED = "unchanged"
    """The file says what runs already."""
    PARTLY = "partly"
    """Something is pending; the report says what and why."""
    REJECTED = "rejected"
    """The file cannot be used, so nothing was changed."""
    UNDER_WAY = "under way"
    """It was not done by the deadline of the one who asked, and goes on."""


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that does not run yet. ``since`` is in seconds since the epoch."""

    change: ConfigChange
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The report of one reload. ``at`` is when it ended, in seconds since the epoch.

    ``problems`` says why a file was rejected, one sentence for each mistake.
    """

    by: str
    at: float
    outcome: ReloadOutcome
    problems: tuple[str, ...] = ()
    applied: tuple[ConfigChange, ...] = ()
    pending: tuple[PendingChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """Desired and applied configuration as plain values, with secrets masked.

    They differ by what is ``pending``. ``problems`` says why the file as it was last read is not
    the desired configuration; ``last`` is the last reload, None before the first.
    """

    file: str
    desired: Mapping[str, Any]
    applied: Mapping[str, Any]
    pending: tuple[PendingChange, ...] = ()
    problems: tuple[str, ...] = ()
    last: ReloadReport | None = None
