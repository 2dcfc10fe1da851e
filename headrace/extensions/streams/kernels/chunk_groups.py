"""Groups of a chunk of records, which are reduced apart from the state and merged into it.

Chunks are merged in the order of their records, so that it is of no account where they are cut. A
chunk knows neither the operator time before it nor what is stored: it says what both decide on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.layout import Inputs
from headrace.extensions.streams.kernels.records import NO_TIME, operator_times
from headrace.extensions.streams.kernels.time_windows import first_open

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array, Records
    from headrace.extensions.streams.windows import TimeWindows


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The groups of a chunk's records by key: a row for each of ``names``.

    These are in the order of their first records. ``last`` are the places of their last ones,
    ``size`` is the number of records, and ``weights`` is what they can add up to.
    """

    size: int
    names: pa.Array
    rows: Parts
    weights: Sequence[float]
    last: Array


@dataclass(frozen=True, slots=True)
class PaneGroups:
    """The groups of a chunk's records by key and pane; there is one at least.

    ``panes`` are those of records, once and ascending, ``counts`` their groups. A group has a code,
    which is its key's place in ``names``, and a row. Names are in the order of their first records.
    ``opened`` says of each pane the first window that was open with the last of its records, and
    ``times`` are the highest ones up to the records with which windows may close, and up to the
    last one: both by the chunk's records alone.
    """

    size: int
    names: pa.Array
    panes: Array
    counts: Array
    codes: Array
    rows: Parts
    weights: Sequence[float]
    opened: Array
    times: Array


def reduce_keys(layout: Layout, records: Records) -> tuple[KeyGroups, Array]:
    """Return the groups of records by key, and the places of the records that rows come from."""
    groups = Groups(records.codes.astype(np.int64), len(records.names))
    inputs = Inputs(layout, records)
    last = np.zeros(len(groups), np.int64)
    last[groups.ids] = np.arange(len(records))
    rows, weights = layout.reduce(groups, inputs), _weights(layout, inputs)
    return KeyGroups(len(records), records.names, rows, weights, last), last


def reduce_panes(
    windows: TimeWindows, layout: Layout, records: Records
) -> tuple[PaneGroups, Array]:
    """Return the groups of records by key and pane, and the places of those that rows come from.

    There is one record at least.
    """
    size, span = len(records), len(records.names)
    times = operator_times(NO_TIME, records.times)
    opened = first_open(windows, times)
    panes = records.times // windows.pane
    lowest = int(panes.min())
    place = panes - lowest
    bound = int(place.max()) + 1
    groups = Groups(place * span + records.codes, bound * span)
    by_pane, of_groups = Groups(place, bound), Groups(groups.numbers // span, bound)
    latest = np.zeros(len(by_pane), np.int64)
    np.maximum.at(latest, by_pane.ids, opened)
    inputs = Inputs(layout, records)
    # with the first one windows may close that were open before the chunk
    named = np.concatenate([[0], np.flatnonzero(np.diff(opened)) + 1, [size - 1]])
    found = PaneGroups(
        size,
        records.names,
        by_pane.numbers + lowest,
        of_groups.sizes,
        groups.numbers % span,
        layout.reduce(groups, inputs),
        _weights(layout, inputs),
        latest,
        times[named],
    )
    return found, named


def _weights(layout: Layout, inputs: Inputs) -> Sequence[float]:
    return layout.weigh(inputs) if layout.can_overflow else ()
