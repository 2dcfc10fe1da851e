"""Keys as bytes, and where they belong."""

from __future__ import annotations

from pathlib import Path

from headrace.keyed.codecs import murmur2, partition_of

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
