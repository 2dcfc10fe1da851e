"""Built-in reducers in columns: all plain keys of a table at once, without a call for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.keyed.tables import OUTPUT, RESULT

if TYPE_CHECKING:
    from headrace.extensions.keyed.facts import FactColumns
    from headrace.extensions.keyed.settings import FoldSettings

#: Bytes of the longest count.
_LONGEST = 20


class CountInColumns:
    """Counts the facts of all keys of a table together. Any thread; sent to workers whole.

    What becomes of the keys is what ``aggregates.count`` makes of them one by one. Values are not
    read. Where a channel has no output, the count is in the state alone.
    """

    def __init__(self, settings: FoldSettings) -> None:
        self._settings = settings

    @staticmethod
    def can_count(settings: FoldSettings) -> bool:
        """Return whether counts can be written so, wherever a channel's outputs go."""
        has_room = settings.max_row >= _LONGEST
        return settings.state == "json" and len(settings.outputs) <= 1 and has_room

    def __call__(self, rows: pa.Table, facts: FactColumns) -> pa.Table | None:
        """Return a table of ``tables.RESULT``, a row for each of ``rows``; these are all plain.

        None where one of them needs a closer look: a key is no text, or a state is no count.
        """
        keys = rows.column("key").chunk(0)
        longest = pc.max(pc.binary_length(keys)).as_py() + _LONGEST
        if longest > min(self._settings.max_output, self._settings.max_row):
            return None
        try:
            if self._settings.keys == "string":
                keys.cast(pa.string())
            before = rows.column("state").chunk(0).cast(pa.string())
            known = before.cast(pa.int64())
            if not pc.all(pc.equal(known.cast(pa.string()), before), min_count=0).as_py():
                return None
            added = pa.array(facts.sizes.astype(np.int64))
            totals = pc.add_checked(pc.fill_null(known, 0), added).cast(pa.string())
        except pa.ArrowInvalid:
            return None
        states, size = totals.cast(pa.binary()), rows.num_rows
        nothing = pa.array(np.zeros(size, np.int32))
        columns = {
            "key": keys,
            "partition": rows.column("partition").chunk(0),
            "changed": pa.array(np.ones(size, np.bool_)),
            "state": states,
            "extra": pa.nulls(size, pa.binary()),
            "outputs": self._outputs(keys, states, facts),
            "late": pa.array(facts.late.astype(np.int32)),
            "reason": pa.nulls(size, pa.string()),
        }
        return pa.Table.from_arrays(
            [columns.get(name, nothing) for name in RESULT.names], schema=RESULT
        )

    def _outputs(self, keys: pa.Array, values: pa.Array, facts: FactColumns) -> pa.ListArray:
        """Return an output for each key, at the time of its last fact."""
        size = len(keys)
        if not self._settings.outputs:
            return pa.array([[]] * size, pa.list_(OUTPUT))
        columns = {
            "to": pa.array([self._settings.outputs[0]] * size, pa.string()),
            "key": keys,
            "value": values,
            "ts": facts.last("ts"),
            "headers": pa.nulls(size, OUTPUT.field("headers").type),
        }
        outputs = pa.StructArray.from_arrays(
            [columns[field.name] for field in OUTPUT], fields=list(OUTPUT)
        )
        return pa.ListArray.from_arrays(pa.array(np.arange(size + 1, dtype=np.int32)), outputs)
