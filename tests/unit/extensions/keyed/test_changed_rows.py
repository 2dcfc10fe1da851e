"""Changed rows in columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.extensions.keyed.api import Timer
from headrace.extensions.keyed.changed_rows import NO_CHANGES, ChangedRows
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange

KEYS = st.builds(
    PartitionKey, st.integers(0, 2), st.sampled_from([b"", b"a", b"ab", b"b", b"\xff"])
)
ROWS = st.sampled_from(
    [
        None,
        KeyRow(b""),
        KeyRow(b"1"),
        KeyRow.of(b"2", {"t": Timer(1)}),
        KeyRow.of(None, {"t": Timer(2)}),
    ]
)
CHANGES = st.dictionaries(KEYS, st.builds(RowChange, ROWS, ROWS))


@given(changes=CHANGES)
def test_changed_rows_are_the_mapping_that_they_were_made_of(
    changes: dict[PartitionKey, RowChange],
) -> None:
    """Rows without a value, empty ones and those with timers alone come back as they were."""
    rows = ChangedRows.of(changes)
    assert dict(rows) == changes
    assert len(rows) == len(changes)
    assert rows.partitions == {key.partition for key in changes}
    assert rows.has_extras == any(
        row and row.extra for change in changes.values() for row in change
    )


@given(changes=CHANGES)
def test_rows_with_and_without_extras_are_all_the_rows(
    changes: dict[PartitionKey, RowChange],
) -> None:
    """Plain rows are those that have and had a state alone."""
    plain, others = ChangedRows.of(changes).by_extras()
    assert {**plain, **others} == changes
    assert not plain.has_extras
    assert all(any(row and row.extra for row in change) for change in others.values())


@given(changes=CHANGES, others=st.lists(CHANGES, max_size=2))
def test_rows_without_those_of_others_have_none_of_their_keys(
    changes: dict[PartitionKey, RowChange], others: list[dict[PartitionKey, RowChange]]
) -> None:
    """A key counts with its partition: the same key elsewhere is another one."""
    left = ChangedRows.of(changes).without([ChangedRows.of(each) for each in others])
    gone = {key for each in others for key in each}
    assert dict(left) == {key: change for key, change in changes.items() if key not in gone}


@given(changes=CHANGES, prefix=st.sampled_from([b"", b"a", b"\xff"]))
def test_rows_within_a_prefix_are_those_of_one_partition(
    changes: dict[PartitionKey, RowChange], prefix: bytes
) -> None:
    """Keys that begin otherwise, and other partitions, are left out."""
    found = ChangedRows.of(changes).within(1, prefix)
    assert dict(found) == {
        key: change
        for key, change in changes.items()
        if key.partition == 1 and key.key.startswith(prefix)
    }


def test_no_changes_are_of_no_partition() -> None:
    """Without changes there are neither rows nor extras."""
    assert not NO_CHANGES
    assert (NO_CHANGES.partitions, NO_CHANGES.has_extras) == (frozenset(), False)
    assert NO_CHANGES.by_extras() == (NO_CHANGES, NO_CHANGES)
