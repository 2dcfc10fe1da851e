"""From the beginnings of micro-batches to rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.sides import Result


def pace(begun: Sequence[float], sizes: Sequence[int]) -> Result:
    """Return the pace from the first micro-batch's beginning to the last one's.

    That leaves out how long a side takes to get going, and the last micro-batch, which is not
    full.

    Raises:
        AssertionError: there were too few micro-batches to tell.
    """
    if len(begun) < 3 or len(begun) != len(sizes):  # noqa: PLR2004 - two whole ones at least
        raise AssertionError(f"{len(begun)} micro-batches began, {len(sizes)} have a size")
    seconds, batches, records = begun[-1] - begun[0], len(begun) - 1, sum(sizes[:-1])
    return {
        "records": sum(sizes),
        "seconds": round(seconds, 3),
        "rate": round(records / seconds),
        "batches_per_second": round(batches / seconds, 2),
        "mean_batch": round(records / batches, 1),
    }
