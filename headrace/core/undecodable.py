"""Undecodable records: what becomes a dead letter, and the code of why."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.core.records import TopicPartition

_CODE = re.compile(r"\[([A-Z][A-Z0-9_]*)\]")


@dataclass(frozen=True, slots=True)
class UndecodableRecord:
    """A record that is left out of a micro-batch, and why. ``timestamp`` is in milliseconds.

    It is -1 where the record has no time.
    """

    offset: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: Sequence[tuple[str, bytes | None]] = field(repr=False)
    timestamp: int
    reason: str


if TYPE_CHECKING:
    #: Those of a micro-batch, each partition's in the order of their offsets.
    Undecodable = Mapping[TopicPartition, Sequence[UndecodableRecord]]


def code_of(message: str | None) -> str | None:
    """Return the code in the message of an undecodable record's error, None without one."""
    match = _CODE.search(message or "")
    return None if match is None else match[1]


def offsets_of(records: Undecodable) -> dict[TopicPartition, list[int]]:
    """Return the offsets of records, by partition."""
    return {where: [each.offset for each in found] for where, found in records.items()}
