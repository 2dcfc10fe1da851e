"""Keys as bytes, and where they belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.extensions.keyed.codecs import from_json, murmur2, partition_of

if TYPE_CHECKING:
    from collections.abc import Callable

#: 2,000 keys of 0 to 39 random bytes: each in hex, what ``Utils.murmur2`` of kafka-clients 4.3.0
#: makes of it, and ``Utils.toPositive`` of that modulo 12.
TABLE = Path(__file__).with_name("murmur2.txt")


def test_keys_belong_where_kafkas_java_producer_puts_them() -> None:
    """Each of 2,000 keys has the hash, and of twelve partitions the one, that Java has for it."""
    rows = [line.split(" ") for line in TABLE.read_text().splitlines()]
    assert len(rows) == 2000
    assert "" in {key for key, _, _ in rows}

    found = [
        (murmur2(bytes.fromhex(key)), partition_of(bytes.fromhex(key), 12)) for key, _, _ in rows
    ]

    assert found == [(int(value) & 0xFFFFFFFF, int(number)) for _, value, number in rows]


def read_by(read: Callable[[bytes], Any], data: bytes) -> str:
    """Return what is read, or that it is no JSON."""
    try:
        return repr(read(data))
    except ValueError:
        return "no JSON"


@example('{"a": 1} \n')
@example(" [1]")
@example("[1] 2")
@example("1\u00a0")
@given(st.integers().map(str) | st.text("0123456789-+._e \u0661") | st.text())
def test_json_is_read_as_the_standard_library_reads_bytes(text: str) -> None:
    """Whole numbers are read without its decoder, and whatever else that takes or refuses by it."""
    data = text.encode("utf-8", "surrogatepass")
    assert read_by(from_json, data) == read_by(json.loads, data)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_json_is_read_in_its_encodings(encoding: str) -> None:
    """With a mark of their order, or without."""
    assert from_json('{"ä": [1, 20]}'.encode(encoding)) == {"ä": [1, 20]}
