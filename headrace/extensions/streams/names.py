"""The names of topics and channels by which rows of a topology go to tables."""

from __future__ import annotations

#: The end of the names of a table's topic, group and channel.
_ENDING = "table"

#: Settings of a table's topic: a week is by the clock, not by the times of records.
TABLE_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 3600 * 1000),
    "message.timestamp.type": "LogAppendTime",
}


def table_topic(group: str, name: str) -> str:
    """Return the topic by which rows of an operator go to its table."""
    return f"{group}.{name}.{_ENDING}"


def table_channel(name: str) -> str:
    """Return the part of a topology that writes the table of an operator."""
    return f"{name}.{_ENDING}"
