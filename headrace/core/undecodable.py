"""Undecodable records: what becomes a dead letter, and the code of why."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

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


def undecodable_in(
    rows: pa.Table, said: Sequence[str], reason_of: Callable[[bytes | None, str], str]
) -> dict[TopicPartition, list[UndecodableRecord]]:
    """Return the records of a table, as it comes from a batch, by partition.

    ``said`` is what their decoder said of each; ``reason_of`` returns the reason that this is, with
    the record's value.
    """
    found: dict[TopicPartition, list[UndecodableRecord]] = {}
    names = ("topic", "partition", "offset", "key", "value", "headers")
    lists = [rows.column(name).to_pylist() for name in names]
    micros = rows.column("timestamp").cast("int64").to_pylist()
    for topic, partition, offset, key, value, headers, time, words in zip(
        *lists, micros, said, strict=True
    ):
        found.setdefault(TopicPartition(topic, partition), []).append(
            UndecodableRecord(
                offset,
                key,
                value,
                [(each["key"], each["value"]) for each in headers or ()],
                -1 if time is None else time // 1000,
                reason_of(value, words),
            )
        )
    for records in found.values():
        records.sort(key=attrgetter("offset"))
    return found


def code_of(message: str | None) -> str | None:
    """Return the code in the message of an undecodable record's error, None without one."""
    match = _CODE.search(message or "")
    return None if match is None else match[1]


def offsets_of(records: Undecodable) -> dict[TopicPartition, list[int]]:
    """Return the offsets of records, by partition."""
    return {where: [each.offset for each in found] for where, found in records.items()}
