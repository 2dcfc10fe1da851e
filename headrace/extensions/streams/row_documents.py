"""Documents in JSON that have a row as their last member, as states and topics between parts do.

The row's text is found without reading it, so that a number keeps the digits it was written with.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What stands before the row. A quote within a text is escaped, so it is found as it is.
_ROW = b',"row":'


def join_row(said: Mapping[str, Any], row: str) -> bytes:
    """Return a document of members, of which there is one at least, and the text of a row."""
    head = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return head[:-1].encode() + _ROW + row.encode() + b"}"


def split_row(value: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the members of a document before the row, and the text of that."""
    said, _, row = value.partition(_ROW)
    return json.loads(said + b"}"), row[:-1]


def key_of(said: Mapping[str, Any]) -> bytes:
    """Return the key that a document names as text, or in hexadecimal digits if it is no UTF-8."""
    return bytes.fromhex(said["hex"]) if "hex" in said else said["key"].encode()
