"""How a side and the benchmark talk: one JSON object a line. Only the standard library.

A side is asked on its standard input, and answers where its standard output was; whatever else the
libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Request:
    """What a side is to read: ``topic`` with so many ``records``, as ``group``.

    ``work`` is ``sum`` (of the values' lengths) or ``json`` (a count by the field ``key``).
    ``settings`` are the side's own.
    """

    work: str
    servers: str
    topic: str
    group: str
    records: int
    settings: dict[str, Any] = field(default_factory=dict)


class Wire:
    """This process's end. For one thread, but for ``tell``."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)

    def requests(self) -> Iterator[Request]:
        """Return what is asked for, until nothing will be."""
        for line in sys.stdin:
            yield Request(**json.loads(line))

    def tell(self, event: str, **facts: Any) -> None:
        """Write a line. Any thread."""
        os.write(self._out, json.dumps({"event": event, **facts}).encode() + b"\n")

    def wait(self) -> None:
        """Wait until the other end has looked at this process."""
        sys.stdin.readline()


class Meter:
    """What came, and when. Used by one thread at a time."""

    def __init__(self, wire: Wire, records: int) -> None:
        self._wire = wire
        self._expected = records
        self.records = 0
        self.bytes = 0
        self.keys: Counter[str] = Counter()
        self._assigned = 0.0
        self._first = 0.0

    def assigned(self) -> None:
        """Note that there are partitions to read; fetching begins behind this call."""
        if not self._assigned:
            self._assigned = time.perf_counter()
            self._wire.tell("assigned")

    def length(self, length: int) -> bool:
        """Count one value; say whether all have come."""
        return self.lengths(1, length)

    def lengths(self, records: int, length: int) -> bool:
        """Count values that have ``length`` bytes together; say whether all have come."""
        self.bytes += length
        return self._took(records)

    def key(self, key: str) -> bool:
        """Count one record by its key; say whether all have come."""
        self.keys[key] += 1
        return self._took(1)

    def each_key(self, keys: Iterable[str], records: int) -> bool:
        """Count records by their keys; say whether all have come."""
        self.keys.update(keys)
        return self._took(records)

    def key_counts(self, counts: Mapping[str, int]) -> bool:
        """Add what was counted elsewhere; say whether all have come."""
        self.keys.update(counts)
        return self._took(sum(counts.values()))

    def _took(self, records: int) -> bool:
        if not self._first:
            self._first = time.perf_counter()
        self.records += records
        if self.records < self._expected:
            return False
        self._complete()
        return True

    def _complete(self) -> None:
        """Report, and rest while this process is looked at."""
        last = time.perf_counter()
        self._wire.tell(
            "complete",
            records=self.records,
            bytes=self.bytes,
            keys=self.keys,
            from_assignment=last - self._assigned,
            from_first=last - self._first,
        )
        self._wire.wait()
