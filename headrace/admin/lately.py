"""What the API answers of the last hour, as models like those of ``headrace.admin.documents``."""

from __future__ import annotations

from datetime import datetime

from headrace.admin.document import Document, Number, Seconds
from headrace.logs import Subject


class HistoryPoint(Document):
    """A channel at one moment."""

    at: datetime
    """The moment."""
    records_per_s: Seconds
    """Records answered a second since the point before."""
    lag: Number
    """Records between the committed offsets and the ends."""
    lag_s: Seconds
    """For how long the next record has been waiting to be answered, the longest of all partitions
    that are not paused."""
    batches_per_s: Seconds
    """Batches ended a second since the point before."""
    busy: dict[str, Seconds]
    """By stage the seconds a second that it took since the point before."""


class History(Document):
    """How channels did lately."""

    interval_s: Seconds
    """Seconds between two points."""
    channels: dict[str, list[HistoryPoint]]
    """By channel its points, the oldest first."""


class EventStatus(Document):
    """What happened, once or several times in short succession."""

    number: Number
    """Its number in the process; rises whenever it happens again."""
    event: str
    """The event's name, as in the log."""
    level: str
    """How much it matters, as in the log."""
    subject: Subject
    """What it is about."""
    first: datetime
    """When it happened first."""
    last: datetime
    """When it happened last."""
    count: Number
    """How often."""
    fields: dict[str, str | int | float | bool | None]
    """What the log has with it, long values cut, of the last time."""


class Events(Document):
    """What happened lately."""

    at: datetime
    """When that was."""
    pid: Number
    """The process; another one counts anew."""
    events: list[EventStatus]
    """The events, the one that was last changed last."""
