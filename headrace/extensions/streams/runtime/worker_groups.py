"""Groups of a chunk's rows on their way from a worker, and the choice between these and rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.inline.grouped import Grouped
from headrace.extensions.streams.kernels.chunk_groups import KeyGroups, PaneGroups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.records import Array

#: The names of columns with parts of rows begin so.
_PART = "part "

#: Micro-batches without groups after some that came in vain, at most.
_LONGEST_REST = 64


def encode_groups(grouped: Grouped, layout: Layout) -> dict[str, pa.Array]:
    """Return the groups of a chunk as columns of one row, which are lists of any length."""
    at, reasons = zip(*grouped.notes, strict=True) if grouped.notes else ((), ())
    lists: dict[str, pa.Array] = {
        "counts": pa.array([grouped.records, grouped.skipped], pa.int64()),
        "note": pa.array(at, pa.int64()),
        "reason": pa.array(reasons, pa.string()),
        "at": pa.array(grouped.at, pa.int32()),
    }
    groups = grouped.groups
    if groups is not None:
        # a weight may be a whole number of more than 64 bits
        sizes = json.dumps([groups.size, *groups.weights])
        lists |= {"sizes": pa.array([sizes]), "name": groups.names}
        if isinstance(groups, PaneGroups):
            lists |= {
                "pane": pa.array(groups.panes),
                "opened": pa.array(groups.opened),
                "size": pa.array(groups.counts, pa.int32()),
                "code": pa.array(groups.codes, pa.int32()),
                "time": pa.array(groups.times),
            }
        else:
            lists["last"] = pa.array(groups.last, pa.int32())
        lists |= {f"{_PART}{at}": each for at, each in enumerate(layout.pack(groups.rows))}
    return {
        name: pa.ListArray.from_arrays(pa.array([0, len(each)], pa.int32()), each)
        for name, each in lists.items()
    }


def decode_groups(columns: pa.RecordBatch, layout: Layout) -> Grouped:
    """Return the groups that :func:`encode_groups` made columns of."""
    lists = {name: columns.column(name).flatten() for name in columns.schema.names}
    records, skipped = lists["counts"].to_pylist()
    notes = list(zip(lists["note"].to_pylist(), lists["reason"].to_pylist(), strict=True))
    groups: KeyGroups | PaneGroups | None = None
    if "sizes" in lists:
        size, *weights = json.loads(lists["sizes"][0].as_py())
        rows = layout.unpack([lists[name] for name in lists if name.startswith(_PART)])
        if "pane" in lists:
            groups = PaneGroups(
                size,
                lists["name"],
                _numbers(lists["pane"]),
                _numbers(lists["size"]),
                _numbers(lists["code"]),
                rows,
                weights,
                _numbers(lists["opened"]),
                _numbers(lists["time"]),
            )
        else:
            groups = KeyGroups(size, lists["name"], rows, weights, _numbers(lists["last"]))
    return Grouped(records, skipped, notes, _numbers(lists["at"]), groups)


def _numbers(column: pa.Array) -> Array:
    return np.asarray(column.to_numpy()).astype(np.int64)


class GroupChoice:
    """Chooses the streams of which groups come back.

    Any thread. Groups that were made in vain cost more than rows, so that after each such
    micro-batch in a row there are twice as many without them.
    """

    def __init__(self, places: Iterable[int]) -> None:
        self._failures = dict.fromkeys(places, 0)
        self._rests = dict.fromkeys(self._failures, 0)

    def choose(self) -> list[int]:
        """Return the streams, by their places, for the next micro-batch."""
        chosen = [place for place, rest in self._rests.items() if rest == 0]
        self._rests = {place: max(rest - 1, 0) for place, rest in self._rests.items()}
        return chosen

    def note(self, place: int, *, useful: bool) -> None:
        """Record whether the groups of a stream were of use."""
        failures = 0 if useful else self._failures[place] + 1
        self._failures[place] = failures
        self._rests[place] = min(2**failures, _LONGEST_REST) if failures else 0
