"""Headers of records in columns, with others added after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.columns import HEADERS
from headrace.core.header_columns import AddedHeader, add_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

_names = st.text(max_size=3)
_values = st.none() | st.binary(max_size=3)
_own = st.lists(st.none() | st.lists(st.tuples(_names, _values), max_size=3), max_size=8)


def _array(own: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.ListArray:
    return pa.array(own, HEADERS)


@given(data=st.data(), own=_own, before=_own)
def test_headers_added_in_columns_are_those_added_one_by_one(
    data: st.DataObject,
    own: list[list[tuple[str, bytes | None]] | None],
    before: list[list[tuple[str, bytes | None]] | None],
) -> None:
    """Own ones stay first, for any values, in a slice of a column too."""
    each = st.lists(_values, min_size=len(own), max_size=len(own))
    added: list[AddedHeader] = data.draw(
        st.lists(st.tuples(_names, _values | each), min_size=1, max_size=4)
    )
    column = _array([*before, *own]).slice(len(before))

    found = add_headers(column, added)

    expected = [
        [
            *(headers or ()),
            *((name, said[place] if isinstance(said, list) else said) for name, said in added),
        ]
        for place, headers in enumerate(own)
    ]
    assert found.type == HEADERS
    assert found.to_pylist() == _array(expected).to_pylist()
    found.validate(full=True)


def test_a_column_of_another_length_is_refused() -> None:
    """A value would be another record's."""
    with pytest.raises(ValueError, match="2 values of a header for 1 records"):
        add_headers(_array([None]), [("n", [b"1", b"2"])])
