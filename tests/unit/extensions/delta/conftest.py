"""A Delta sink on a table of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.extensions.delta.sink import DeltaSink
from tests.unit.extensions.delta.delta_tables import share, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the table."""
    return tmp_path / "table"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[[], DeltaSink]]:
    """Open sinks on the table; close them at the end."""
    sinks = []

    def open_one() -> DeltaSink:
        sink = DeltaSink(folder)
        sink.open()
        sinks.append(sink)
        return sink

    yield open_one
    for sink in sinks:
        sink.close()


@pytest.fixture
def sink(opened: Callable[[], DeltaSink]) -> DeltaSink:
    """Open one sink that has stored [0, 10) of partition 0 with the row 1."""
    sink = opened()
    sink.commit(stage(sink, "first", [1]), [share(0, 0, 10)])
    return sink
