"""The filter in front of the log: which lines are repeats, and of what."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog

from headrace.logs.libraries import claim, is_library
from headrace.logs.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Hashable

log = structlog.get_logger(__name__)

#: Lines of one kind within an interval: enough for what comes in small numbers by its nature.
BURST = 10

#: Lines of one library within an interval, whatever they say: many have numbers in their text.
LIBRARY_BURST = 50

#: The fields that say what an event is about. Two events are repeats where they agree in these.
_ABOUT = (
    "channel",
    "topic",
    "partition",
    "group",
    "member",
    "thread",
    "lane",
    "path",
    "table",
    "pattern",
    "transactional_id",
)

#: Events that are limited where they come from, or that belong together.
_LIMITED = frozenset({"kafka_client", "repeats_left_out", "spark_log", "spark_output"})
_TOGETHER = frozenset({"config_pending", "partition_activity", "stack_dump", "thread_stack"})

#: Events that answer for something, each for another thing: who changed what, which record is gone.
_RECORDS = frozenset({"admin_change", "record_left_out", "skip_asked", "skip_came_late"})

_FREE = _LIMITED | _TOGETHER | _RECORDS


class RepeatFilter(logging.Filter):
    """Holds repeats back, and adds to the next line of the kind how many were ``repeated``.

    Limited are our own events from info to warning, and every line of a library. Errors of our
    own never are, because they may say why something ended; nor is what was asked for with
    debug, nor what the user's code logs. Kinds of which nothing more comes are summed up in
    ``repeats_left_out`` as soon as anything is logged. Any thread.
    """

    def __init__(self, repeats: Repeats | None = None) -> None:
        super().__init__()
        self._repeats = repeats or Repeats(BURST)

    def after_fork_in_child(self) -> None:
        """Count anew: another thread may have been counting at the fork."""
        self._repeats = Repeats(BURST)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if record.name == "root":
            claim(record)
            if not logging.getLogger(record.name).isEnabledFor(record.levelno):
                return False
        admitted = self._decide(record)
        for kind, count in self._repeats.over():
            _report(kind, count)
        return admitted

    def _decide(self, record: logging.LogRecord) -> bool:
        if is_library(record.name):
            return self._admit_library(record)
        event = _event(record)
        if event is None or not record.name.startswith("headrace"):
            return True
        if event.get("event") in _FREE or not logging.INFO <= record.levelno < logging.ERROR:
            return True
        about = tuple(str(event.get(name, "")) for name in _ABOUT)
        return self._admit(record, (record.name, event.get("event"), *about))

    def _admit_library(self, record: logging.LogRecord) -> bool:
        event = _event(record)
        if event is not None and event.get("event") in _FREE:
            return True
        library = record.name.partition(".")[0]
        if self._repeats.admit((library, "library_log"), LIBRARY_BURST) is None:
            return False
        return self._admit(record, (record.name, str(event.get("event") if event else record.msg)))

    def _admit(self, record: logging.LogRecord, kind: Hashable) -> bool:
        repeated = self._repeats.admit(kind)
        if repeated:
            record.repeated = repeated
        return repeated is not None


def _event(record: logging.LogRecord) -> dict[str, Any] | None:
    """Return the event of a line that came through structlog."""
    return record.msg if isinstance(record.msg, dict) else None


def _report(kind: Hashable, count: int) -> None:
    assert isinstance(kind, tuple)
    logger, event, *about = kind
    fields = {name: value for name, value in zip(_ABOUT, about, strict=False) if value}
    log.info("repeats_left_out", of=event, source=logger, repeated=count, **fields)
