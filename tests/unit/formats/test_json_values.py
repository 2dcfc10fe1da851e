"""Values in JSON decoded in C: the same rows as Arrow's reader makes, or the same refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace.core.errors import StartError
from headrace.core.misfits import MISFIT
from headrace.formats import json_values
from headrace.formats.json_by_arrow import read_by_arrow
from headrace.formats.json_values import JsonDecoder
from headrace.formats.native import library
from tests.unit.formats.documents import Documents, is_same
from tests.unit.formats.sanitized import require_clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KIND = pa.struct(
    [
        ("n", pa.int32()),
        ("s", pa.string()),
        ("l", pa.list_(pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]))),
    ]
)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if not library.PATH.exists():
        pytest.skip("the part in C was not compiled")
    library.load()  # one that is of another version would have Arrow's reader tested


def read(values: Sequence[bytes | None], kind: pa.StructType = KIND) -> tuple[list[Any], list[int]]:
    """Return the rows of values, and the places of those that are bad."""
    rows, bad = JsonDecoder(kind).columns(pa.array(values, pa.binary()))
    rows.validate(full=True)
    return rows.to_pylist(), list(bad)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "schemas"),
    [(0, 250), *(pytest.param(n, 5000, marks=pytest.mark.slow) for n in (1, 2))],
)
def test_documents_near_a_schema_are_those_of_arrows_reader(seed: int, schemas: int) -> None:
    """Any schema and any document, whole or with bytes changed, has the row that Arrow makes."""
    drawn, good = Documents(seed), 0
    for _ in range(schemas):
        timestamps, kind = drawn.timestamps(), drawn.schema()
        values = [drawn.value(kind) for _ in range(20)]
        rows, bad = JsonDecoder(kind, timestamps).columns(pa.array(values, pa.binary()))
        rows.validate(full=True)
        for value, place, row in zip(values, range(20), rows.to_pylist(), strict=True):
            found, is_bad = read_by_arrow(pa.array([value], pa.binary()), kind, timestamps)
            expected = found.to_pylist()[0]
            assert is_same(row, expected), (kind, timestamps, value, row, expected)
            assert (place in bad) == bool(is_bad), (kind, timestamps, value)
            good += not is_bad
    assert schemas * 20 * 0.2 < good < schemas * 20 * 0.9


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b'{"n": 1',
        b'{"n": 1}x',
        b'{"n": "1"}',
        b'{"n": 1, "n": 2}',
        b'{"s": "\xff"}',
        b'{"s": "\\ud800"}',
        b'{"l": [{"x": 1}, {"x": 1.5}]}',
    ],
)
def test_a_bad_value_has_no_row_and_spoils_no_neighbour(value: bytes) -> None:
    """Texts, lists and what is within them keep nothing of it, wherever it became bad."""
    good = b'{"n": 7, "s": "\\u20ac", "l": [{"y": ["a", null]}, null, {"x": 1}]}'
    row = {"n": 7, "s": "€", "l": [{"x": None, "y": ["a", None]}, None, {"x": 1, "y": None}]}
    half = good[:-1] + b', "q": }'
    assert read([good, half, value, None, good, b"{}"]) == (
        [row, None, None, None, row, dict.fromkeys(["n", "s", "l"])],
        [1, 2],
    )


def test_slices_and_large_binaries_are_read_as_they_are() -> None:
    """An array may begin within another, have nulls, or be empty, or have offsets of 64 bits."""
    values = [b'{"n": 1}', None, b"x", b'{"n": 2}', b'{"n": 3}']
    for kind in (pa.binary(), pa.large_binary()):
        rows, bad = JsonDecoder(KIND).columns(pa.array(values, kind)[1:4])
        assert [row and row["n"] for row in rows.to_pylist()] == [None, None, 2]
        assert list(bad) == [1]
        assert len(JsonDecoder(KIND).columns(pa.array([], kind))[0]) == 0
        assert JsonDecoder(KIND).columns(pa.nulls(2, kind))[0].to_pylist() == [None, None]


def test_values_of_more_bytes_than_a_column_has_are_read_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows and places are those of all values."""
    values = [b'{"n": %d}' % n if n % 3 else b"x" for n in range(100)]
    expected = read(values)
    monkeypatch.setattr(json_values, "_MOST_BYTES", 100)
    assert read(values) == expected
    assert expected[1] == [*range(0, 100, 3)]


def test_members_in_any_order_are_found_after_others_were_guessed() -> None:
    """A name is found wherever it is, however long, and with escapes."""
    names = [f"n{n}" for n in range(70)] + ["x" * 31, "x" * 32, "x" * 33]
    kind = pa.struct([(name, pa.int32()) for name in names[1:]])
    documents = []
    for turn in range(4):
        members = [f'"{name}":{at}' for at, name in enumerate(names)]
        turned = members[turn * 9 :] + members[: turn * 9]
        documents.append(f"{{{','.join(turned)}}}".encode())
    documents.append(b'{"n1":1,"\\u006e2":2}')
    rows, bad = read(documents, kind)
    assert bad == []
    assert rows[:4] == [{name: at for at, name in enumerate(names) if at}] * 4
    assert (rows[4]["n1"], rows[4]["n2"]) == (1, 2)


def test_depth_has_no_limit_where_nothing_is_read() -> None:
    """A member that the schema does not name may be nested as deep as its value is long."""
    deep = b'{"more": ' + b"[" * 200_000 + b"]" * 200_000 + b', "n": 1}'
    rows, bad = read([deep, deep.replace(b"]]", b"]", 1)])
    assert (rows[0]["n"], bad) == (1, [1])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'{"n": "x"}', '[TYPE] field n: INT is expected, found the text "x", at byte 6'),
        (b'{"s" :\n7}', "[TYPE] field s: STRING is expected, found the number 7, at byte 7"),
        (
            b'{"l": [{"x": 1}, {"x": 1.5}]}',
            "[TYPE] field l[1].x: BIGINT is expected, found the number 1.5, at byte 23",
        ),
        (b'{"l": {}, "n": "x"}', '[TYPE] field n: INT is expected, found the text "x"'),
        (b'{"n": 1', "[NOT_JSON] at byte 7: ',' delimiter is expected, found the end"),
        (b'{"s": "\xff"}', "[NOT_UTF8] at byte 7: 0xff is no UTF-8"),
        (b'{"n": 1, "n": 2}', "[TWICE] field n is there twice"),
    ],
)
def test_a_reason_names_the_field_and_its_byte(value: bytes, said: str) -> None:
    """The byte is that of the field which is named, and left out where another one was first."""
    _, bad = JsonDecoder(KIND).columns(pa.array([b"{}", value], pa.binary()))
    assert dict(bad) == {1: f"{MISFIT}: {said}"}
    with pytest.raises(KeyError):
        bad[0]


def test_a_type_that_is_not_known_in_c_is_read_by_arrow() -> None:
    """A column of bytes is none in JSON, and refused as Arrow refuses it."""
    kind = pa.struct([("n", pa.int32()), ("at", pa.timestamp("s"))])
    rows, bad = read([b'{"n": 1, "at": "2026-03-29T10:00:00"}', b"x"], kind)
    assert ([row and row["n"] for row in rows], bad) == ([1, None], [1])


def test_without_the_part_in_c_rows_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's reader decodes in its place, and the log says once why."""

    def missing() -> None:
        raise StartError("it was not built")

    values = [b'{"n": 1, "s": "a"}', None, b"x", b'{"l": [{"y": []}]}']
    expected = read(values)
    monkeypatch.setattr(library, "load", missing)
    json_values._say_missing.cache_clear()
    with capture_logs() as lines:
        assert read(values) == expected
        assert read(values) == expected
    (line,) = [line for line in lines if line["event"] == "json_decoded_without_c"]
    assert line["reason"] == "it was not built"


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that was not compiled with the code that calls it is not used."""
    library.load.cache_clear()
    monkeypatch.setattr(library, "REVISION", library.REVISION + 1)
    with pytest.raises(StartError, match="another version"):
        library.load()


#: What is run with the sanitizers' libraries, which have to be loaded before Python.
_SANITIZED = """
import sys
from pathlib import Path

import pyarrow as pa

from headrace.formats.json_values import JsonDecoder
from headrace.formats.native import library
from tests.unit.formats.documents import Documents

library.PATH = Path(sys.argv[1])
library.load()
drawn = Documents(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    timestamps, kind = drawn.timestamps(), drawn.schema()
    values = [drawn.value(kind) for _ in range(20)]
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value or b""))
    # its own piece of memory, after whose end nothing may be looked at
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    nulls = pa.array([value is not None for value in values]).buffers()[1]
    array = pa.Array.from_buffers(pa.binary(), len(values), [nulls, offsets, data])
    rows, _ = JsonDecoder(kind, timestamps).columns(array)
    rows.validate(full=True)
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [11, 12])
def test_sanitizers_find_nothing_in_any_document(tmp_path: Path, seed: int) -> None:
    """No address outside of what is allocated is used, and nothing undefined is done."""
    require_clean(_SANITIZED, tmp_path, str(seed), "4000")
