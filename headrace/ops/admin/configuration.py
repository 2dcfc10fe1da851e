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
    """The path of the setting, such as channels.flights.batch.linger."""
    kind: ChangeKind
    """The kind of change."""
    effect: ReloadEffect
    """The effect of the change on what runs."""
    before: Any
    """The value before."""
    after: Any
    """The value in the file."""


class PendingStatus(Document):
    """A setting of the file that does not run yet."""

    path: str
    """The path of the setting."""
    effect: ReloadEffect
    """The effect of the change on what runs."""
    reason: SendableText
    """The reason why it does not run."""
    since: datetime
    """The time at which it was first wanted."""


class ConfigSummary(Document):
    """A comparison of desired and applied configuration."""

    pending: list[PendingStatus]
    """Settings of the file that do not run yet."""
    problems: list[SendableText]
    """Reasons why the file as it was last read cannot be used; what ran before goes on."""
    last_at: datetime | None
    """The time at which the last reload ended; null: there was none."""
    last_by: str | None
    """The name of its requester."""
    last_outcome: ReloadOutcome | None
    """The outcome of that reload."""


class ConfigDocument(Document):
    """The configuration, defaults filled in and secrets masked."""

    file: str
    """The file it came from."""
    applied: dict[str, Any]
    """The configuration that is in effect."""
    desired: dict[str, Any]
    """The configuration in the file, as it was last read and could be used."""
    summary: ConfigSummary | None
    """The comparison of the two; null: this process takes up no changes."""


class ReloadAnswer(Document):
    """The result of a reload."""

    outcome: ReloadOutcome
    """The outcome of the reload."""
    at: datetime
    """The time at which it ended."""
    problems: list[SendableText]
    """Reasons why the file was rejected; nothing was changed then."""
    applied: list[ChangeStatus]
    """Changes that are now in effect."""
    pending: list[PendingStatus]
    """Changes that do not run yet, with the reasons."""


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
