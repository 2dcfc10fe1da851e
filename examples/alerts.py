"""A function for single records, as examples/headrace.yaml names it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace import Record


def send(record: Record) -> None:
    """Write one line for each alert; an exception would deliver the record again."""
    value = record.value()
    if value is not None:
        sys.stdout.write(f"{record.topic()}: {value.decode(errors='replace')}\n")
