"""The results of folding keys, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.letter_headers import shortened
from headrace.extensions.keyed.tables import OUTPUT, RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.keyed.tables import OutputRow, Touched


@dataclass(slots=True)
class Folded:
    """The result of folding one key."""

    row: KeyRow
    outputs: list[OutputRow] = field(default_factory=list)
    fired: int = 0
    late: int = 0
    dropped: int = 0
    rejected: int = 0
    expired: int = 0
    reason: str | None = None

    def reject(self, reason: str) -> None:
        """Count a fact or a timer that is rejected."""
        self.rejected += 1
        if self.reason is None:
            self.reason = shortened(reason)


class FoldResults:
    """The results of folding keys, in the order in which they are added."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._outputs: list[OutputRow] = []
        self._ends = [0]

    def add(self, touched: Touched, found: Folded) -> None:
        """Add a key."""
        after, is_changed = found.row, found.row != touched.row
        numbers = found.fired, found.late, found.dropped, found.rejected, found.expired
        self._rows.append(
            (touched.key, touched.partition, is_changed, *after, *numbers, found.reason)
        )
        self._outputs += found.outputs
        self._ends.append(len(self._outputs))

    def add_plain(  # noqa: PLR0917 - the columns of a row
        self,
        key: bytes,
        partition: int,
        before: bytes | None,
        after: bytes | None,
        outputs: Iterable[OutputRow],
        late: int,
    ) -> None:
        """Add a key that has a state and nothing else, before and after."""
        self._rows.append((key, partition, after != before, after, None, 0, late, 0, 0, 0, None))
        self._outputs += outputs
        self._ends.append(len(self._outputs))

    def table(self) -> pa.Table:
        """Return a table of :data:`RESULT`."""
        outputs = pa.StructArray.from_arrays(
            _columns(self._outputs, list(OUTPUT)), fields=list(OUTPUT)
        )
        others = [kind for kind in RESULT if kind.name != "outputs"]
        columns = dict(
            zip((kind.name for kind in others), _columns(self._rows, others), strict=True)
        )
        columns["outputs"] = pa.ListArray.from_arrays(pa.array(self._ends, pa.int32()), outputs)
        return pa.Table.from_arrays([columns[name] for name in RESULT.names], schema=RESULT)


def _columns(rows: Sequence[tuple[Any, ...]], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Return rows in columns."""
    columns = zip(*rows, strict=True) if rows else repeat(())
    return [pa.array(values, kind.type) for values, kind in zip(columns, fields, strict=False)]
