"""Rows that an operator emits, as columns, in the order in which they are emitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.kernels.layout import put_rows, take_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array


class Emit(Enum):
    """The results of a windowed aggregate that are written."""

    UPDATES = "updates"
    """The last value of each key and window that a micro-batch changed."""

    EACH = "each"
    """A value for each record, in each of its windows."""

    FINAL = "final"
    """One value for each key and window, once the window is over."""


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows of keys and windows.

    ``at`` is the record that a row comes from: of updates the last one of the micro-batch, of final
    the one that the window is over with, before which the row is emitted. ``codes`` are positions
    in ``names``. ``times`` are the latest of the records in the row. A row that is not ``present``
    withdraws an earlier one: its values are null, and mean nothing.
    """

    at: Array
    codes: Array
    names: pa.Array
    starts: Array
    ends: Array
    times: Array
    values: tuple[pa.Array, ...]
    present: Array

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class WindowResult:
    """The result of a micro-batch: rows by way of emitting, and the records that were late.

    ``closed`` counts the windows of keys that are over with it.
    """

    rows: dict[Emit, WindowRows]
    late: Array
    closed: int = 0


def no_rows() -> Array:
    """Return an array of no positions."""
    return np.empty(0, np.int64)


def list_window_rows(
    layout: Layout,
    found: Sequence[tuple[int, bytes, int, int, int]],
    rows: Parts,
    *,
    latest: bool = False,
) -> WindowRows:
    """Return rows by record, key, begin, end and place in ``rows``, below 0 for a withdrawn one.

    Their times are their ends, or those of ``rows`` where ``latest`` says so.
    """
    at, names, begins, ends, places = zip(*found, strict=True) if found else ((),) * 5
    place = np.array(places, np.int64)
    present = place >= 0
    own = layout.empty(len(found))
    put_rows(own, present, take_rows(rows, place[present]))
    keys = pa.array(names, pa.binary()).dictionary_encode()
    return WindowRows(
        np.array(at, np.int64),
        keys.indices.to_numpy(),
        keys.dictionary,
        np.array(begins, np.int64),
        np.array(ends, np.int64),
        own[0] if latest else np.array(ends, np.int64),
        layout.results(own),
        present,
    )
