"""Which of many values are rows: what is found together is what each of them is by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.misfits import ExpectedObject
from headrace.core.tables import Timestamps
from headrace.extensions.arrow.decode import parse_ddl
from headrace.formats import json_by_arrow
from headrace.formats.json_by_arrow import _read, read_by_arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = pa.struct(
    list(
        parse_ddl(
            "id INT, at TIMESTAMP, day DATE, cost DECIMAL(6, 2), x DOUBLE, name STRING, "
            "local TIMESTAMP_NTZ, few ARRAY<TINYINT>, who STRUCT<a: INT, b: STRING>"
        )
    )
)

GOOD: list[bytes | None] = [
    None,
    b"{}",
    b' {"id": 1, "name": "a}{"} ',
    b'{"id": 2, "at": "2024-01-02T03:04:05Z", "day": "2024-01-02", "cost": 1.5, "more": [1, {}]}',
    b'{"few": [1, 2], "who": {"a": 1, "b": "300"}, "x": 1e5, "local": "2024-01-02T03:04:05"}',
]

#: No rows: for the reader of JSON, for what converts fields, or for what looks at rows after that.
NONE = [
    b"",
    b" \n",
    b'{"id": 1, "name": "a',
    b'{"id": "one"}',
    b"[]",
    b"null",
    b'"x"',
    b"1",
    b'{"id": 99999999999}',
    b'{"id": 1.5}',
    b'{"at": "yesterday"}',
    b'{"at": 5}',
    b'{"day": "2024-13-01"}',
    b'{"cost": 123456.5}',
    b'{"name": "\xff"}',
    b'{"few": [1, 300]}',
    b'{"who": {"a": 300000000000}}',
    b'{"x": 1e999}',
    b'{"id": 1}}\n{"v":{"id": 2}',
    b'{"id": 1}}{"v":{"id": "two"}',
    b'{"id": 1}, "x": {"a": 1}',
    b'{"id": 1}, "list": [{}',
    b"{",
    b"}",
    b'{"id": 1}}',
]


def by_themselves(values: Sequence[bytes | None]) -> tuple[list[Any], list[int]]:
    """Return the rows of values, and the places of those that are none, each read alone."""
    rows: list[Any] = []
    bad = []
    for place, value in enumerate(values):
        found = _read(pa.array([value], pa.binary()), KIND, Timestamps.ISO)
        if isinstance(found, str):
            bad.append(place)
        rows += [None] if isinstance(found, str) else found.to_pylist()
    return rows, bad


def together(values: Sequence[bytes | None]) -> tuple[list[Any], list[int]]:
    """Return the same of what is found together."""
    rows, bad = read_by_arrow(pa.array(values, pa.binary()), KIND, Timestamps.ISO)
    return rows.to_pylist(), bad


@given(
    values=st.lists(st.sampled_from(GOOD) | st.sampled_from([*GOOD, *NONE]), max_size=40),
    block=st.sampled_from([1, 3, 8, 512]),
    few=st.sampled_from([1, 256]),
)
@example([b"{}", *NONE, b"{}"], 512, 256)
@example([b'{"id": 1}}\n{"v":{"id": 2}', b"{}", b"[]", b"{}"], 512, 256)
@example([*[b'{"at": "yesterday", "name": "yesterday"}', b'{"name": "yesterday"}'] * 20], 512, 256)
def test_values_read_together_equal_single_ones(
    values: list[bytes | None], block: int, few: int
) -> None:
    """Values decoded together give the rows and places that each gives alone."""
    with patch.object(json_by_arrow, "_BLOCK", block), patch.object(json_by_arrow, "_FEW", few):
        assert together(values) == by_themselves(values)


def made(number: int, bad: Sequence[bytes]) -> bytes:
    """Return one of many values of which three of a hundred are none."""
    if number * 37 % 100 < 3:
        return bad[number % len(bad)]
    return json.dumps({"id": number, "at": "2024-01-02T03:04:05Z", "name": f"n{number}"}).encode()


@pytest.mark.parametrize(
    "bad",
    [
        [b"", b'{"id": 1, "name": "LH', b'{"id": "one", "name": "LH"}'],
        [b'{"at": "yesterday"}', b"[]"],
    ],
    ids=["reading", "converting"],
)
def test_three_of_a_hundred_that_are_none_have_no_value_read_by_itself(bad: list[bytes]) -> None:
    """Arrow says which they are: the others are read a few times over, a block at a time."""
    values = [made(number, bad) for number in range(4000)]
    with (
        patch.object(json_by_arrow, "_parsed", wraps=json_by_arrow._parsed) as parsed,
        patch.object(ExpectedObject, "misfit", side_effect=AssertionError) as looked,
    ):
        _, found = together(values)
    assert found == [at for at, value in enumerate(values) if value in bad]
    alone = sum(len(call.args[0]) == 1 for call in parsed.call_args_list)
    assert alone <= len(found)
    assert parsed.call_count < 3 * len(found)
    looked.assert_not_called()
