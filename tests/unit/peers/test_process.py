from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.peer_sides.wire import Request
from benchmarks.peers.process import PeerError, Program, SideProcess

if TYPE_CHECKING:
    from pathlib import Path

_REQUEST = Request("sum", "127.0.0.1:1", "topic", "group", 20)

#: A side that counts what it was asked for, and prints like a library.
_COUNTS = """
from benchmarks.peer_sides.wire import Meter, Wire
wire = Wire()
for request in wire.requests():
    print("a library says hello")
    meter = Meter(wire, request.records)
    meter.assigned()
    while not meter.lengths(5, 50):
        pass
"""

#: One that counts keys, and ends badly.
_FAILS = """
from benchmarks.peer_sides.wire import Wire
next(Wire().requests())
raise SystemExit("no such topic here")
"""


def _started(code: str, folder: Path) -> SideProcess:
    return SideProcess(Program("side", (sys.executable, "-c", code), folder))


def test_a_side_says_what_it_counted_and_is_looked_at(tmp_path: Path) -> None:
    """Counts come with memory, threads and processor time, among other output."""
    process = _started(_COUNTS, tmp_path)
    measured = process.round(_REQUEST)
    process.close()
    assert (measured["records"], measured["bytes"], measured["keys"]) == (20, 200, {})
    assert measured["memory_mib"] > 1
    assert measured["threads"] == 1
    assert 0 <= measured["from_first"] <= measured["from_assignment"]
    assert "hello" in (tmp_path / "side.log").read_text(encoding="utf-8")


def test_a_side_that_ends_by_itself_is_named_with_its_own_words(tmp_path: Path) -> None:
    """The error has the side's standard error."""
    process = _started(_FAILS, tmp_path)
    with pytest.raises(PeerError, match=r"side ended by itself .*\n.*no such topic here"):
        process.round(_REQUEST)
    with pytest.raises(PeerError, match="side ended with code 1"):
        process.close()
