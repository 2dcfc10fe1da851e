"""A function as a sink under attack, for the processor that hands batches to functions."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.chaos.sinks import PlainSink
from benchmarks.chaos.world import MEMBER, SINKS

if TYPE_CHECKING:
    from headrace.core.records import Batch


def store(batch: Batch) -> None:
    """Work for a while, and store a batch's records."""
    _sink().on_next_batch(batch)


@cache
def _sink() -> PlainSink:
    return PlainSink(str(Path(os.environ[SINKS]) / "function"), os.environ[MEMBER])
