"""Desired and applied configuration, and what a reload brought, as documents."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.config import ChangeKind, ReloadEffect
from headrace.controller.reports import ReloadOutcome
from headrace.ops.admin.document import Document, SendableText, moment

if TYPE_CHECKING:
    from headrace.config import ConfigChange
    from headrace.controller.reports import ConfigStatus, PendingChange, ReloadReport


class ChangeStatus(Document):
    """One setting that is different. Secrets are masked."""

    path: str
    """Where it stands, as channels.flights.batch.linger."""
    kind: ChangeKind
    """What became of it."""
    effect: ReloadEffect
    """What has to be touched for it."""
    before: Any
    """What ran before."""
    after: Any
    """What the file says."""


class PendingStatus(Document):
    """A setting of the file that does not run yet."""

    path: str
    """Where it stands."""
    effect: ReloadEffect
    """What has to be touched for it."""
    reason: SendableText
    """Why it does not run."""
    since: datetime
    """Since when it is wanted."""


class ConfigSummary(Document):
    """How desired and applied configuration compare."""

    pending: list[PendingStatus]
    """What the file says and does not run yet."""
    problems: list[SendableText]
    """Why the file as it was last read cannot be used; what ran before goes on."""
    last_at: datetime | None
    """When the last reload ended; null: there was none."""
    last_by: str | None
    """Who wanted it."""
    last_outcome: ReloadOutcome | None
    """What came of it."""


class ConfigDocument(Document):
    """The configuration, defaults filled in and secrets masked."""

    file: str
    """The file it came from."""
    applied: dict[str, Any]
    """What is in effect."""
    desired: dict[str, Any]
    """What the file says, as it was last read and could be used."""
    summary: ConfigSummary | None
    """How the two compare; null: this process takes up no changes."""


class ReloadAnswer(Document):
    """What a reload brought."""

    outcome: ReloadOutcome
    """How it ended."""
    at: datetime
    """When."""
    problems: list[SendableText]
    """Why the file was rejected; nothing was changed then."""
    applied: list[ChangeStatus]
    """What is different and runs now."""
    pending: list[PendingStatus]
    """What does not run yet, and why."""


def summary(status: ConfigStatus) -> ConfigSummary:
    """Describe how desired and applied configuration compare."""
    last = status.last
    return ConfigSummary(
        pending=[_pending(each) for each in status.pending],
        problems=list(status.problems),
        last_at=None if last is None else moment(last.at),
        last_by=None if last is None else last.by,
        last_outcome=None if last is None else last.outcome,
    )


def reload_answer(report: ReloadReport) -> ReloadAnswer:
    """Describe what came of a reload."""
    return ReloadAnswer(
        outcome=report.outcome,
        at=moment(report.at),
        problems=list(report.problems),
        applied=[_change(each) for each in report.applied],
        pending=[_pending(each) for each in report.pending],
    )


def _change(change: ConfigChange) -> ChangeStatus:
    return ChangeStatus(
        path=change.path,
        kind=change.kind,
        effect=change.effect,
        before=change.before,
        after=change.after,
    )


def _pending(pending: PendingChange) -> PendingStatus:
    return PendingStatus(
        path=pending.change.path,
        effect=pending.change.effect,
        reason=pending.reason,
        since=moment(pending.since),
    )
