"""Undecodable records: what becomes a dead letter, and the code of why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class UndecodableRows(Mapping[TopicPartition, Sequence[UndecodableRecord]]):
    """The undecodable records among a batch's rows, by partition, in the order of their offsets.

    They are made when they are first asked for, which is by the thread that commits: who decodes
    does not wait for reasons. ``rows`` is a table as it comes from a batch, ``said`` what their
    decoder said of each; ``reason_of`` returns the reason that this is, with the record's value.
    One thread at a time.
    """

    def __init__(
        self, rows: pa.Table, said: Sequence[str], reason_of: Callable[[bytes | None, str], str]
    ) -> None:
        self._rows = rows
        self._said = said
        self._reason_of = reason_of

    def __getitem__(self, partition: TopicPartition) -> Sequence[UndecodableRecord]:
        return self._records[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @cached_property
    def _records(self) -> Mapping[TopicPartition, Sequence[UndecodableRecord]]:
        found: dict[TopicPartition, list[UndecodableRecord]] = {}
        names = ("topic", "partition", "offset", "key", "value", "headers")
        lists = [self._rows.column(name).to_pylist() for name in names]
        micros = self._rows.column("timestamp").cast("int64").to_pylist()
        for topic, partition, offset, key, value, headers, time, words in zip(
            *lists, micros, self._said, strict=True
        ):
            found.setdefault(TopicPartition(topic, partition), []).append(
                UndecodableRecord(
                    offset,
                    key,
                    value,
                    [(each["key"], each["value"]) for each in headers or ()],
                    -1 if time is None else time // 1000,
                    self._reason_of(value, words),
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
