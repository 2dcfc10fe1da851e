"""What the API answers to changes; see ``headrace.admin.documents``."""

from __future__ import annotations

from datetime import datetime

from headrace.admin.document import Document, Number, Offset, Text
from headrace.admin.documents import PauseStatus, SkipStatus
from headrace.admin.ports import Phase


class PauseAnswer(Document):
    """A pause that began."""

    pause: PauseStatus
    """The pause."""
    acknowledged: bool | None
    """Whether all pauses of the channel had their effect by the end of the wait: nothing is being
    processed, what was answered is committed. Null: nobody waited."""
    replaced: PauseStatus | None
    """The pause of the same person and scope that this one came in the place of; null: none."""
    others: list[PauseStatus]
    """Pauses of the channel and of its partitions that there were already and that go on."""


class ResumeAnswer(Document):
    """A pause that ended."""

    resumed: PauseStatus | None
    """The pause; null: there was none."""
    pauses: list[PauseStatus]
    """Those that go on."""


class SeekAnswer(Document):
    """A partition that was moved; that is committed."""

    topic: str
    """Its topic."""
    partition: Number
    """Its number."""
    before: Offset
    """Where it would have gone on."""
    offset: Offset
    """Where it goes on."""


class ResetAnswer(Document):
    """Partitions that were moved."""

    moved: list[SeekAnswer]
    """All of those that this process holds, or the one that was named."""


class SkipAnswer(SkipStatus):
    """A record that is left out from now on, and what it was in when that was asked for."""

    batch_offset: Offset | None
    """The first record of the batch that was out, or that had failed; null: there was none."""
    batch_end: Offset | None
    """The offset behind that batch."""
    attempts: Number
    """How often in a row it had failed."""
    last_error: Text | None
    """The last error of the partition."""


class LogLevelAnswer(Document):
    """How much is logged now."""

    levels: dict[str, str]
    """By logger the least severity that is logged; "" stands for all others."""
    reverts_at: datetime | None
    """When it goes back to what it was."""


class StopAnswer(Document):
    """A stop that was asked for."""

    phase: Phase
    """Where the process is in its life: the stop begins within a second."""
