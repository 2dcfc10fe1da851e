"""What the API answers of groups, as models like those of ``headrace.admin.documents``."""

from __future__ import annotations

from datetime import datetime

from headrace.admin.document import Document, Number
from headrace.coordinators.members import Mode


class GroupMember(Document):
    """A member of a group, as its node in ZooKeeper says."""

    name: str
    """Its name."""
    this: bool
    """Whether it is this process."""
    host: str | None
    """The machine it runs on."""
    pid: int | None
    """Its process id."""
    software: str | None
    """The version of what it runs."""
    since: datetime | None
    """When it joined."""
    mode: Mode | None
    """How it chooses its partitions."""
    draining: bool | None
    """Whether it gives everything back."""
    owned: Number
    """How many partitions it owns."""
    problem: str | None
    """Why its node cannot be read."""


class Group(Document):
    """A channel's group."""

    channel: str
    """The channel."""
    group: str
    """The group."""
    members: list[GroupMember]
    """The members, by name."""
    owners: dict[str, str | None]
    """By partition (topic-number) its owner's name; null where its node cannot be read."""


class Members(Document):
    """The groups of all channels."""

    at: datetime
    """When that was."""
    groups: list[Group]
    """The groups, by channel."""
