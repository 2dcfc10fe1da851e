"""A store whose files come from another machine: a start goes on from there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.unit.processors.keyed_bench import KeyedBench

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> KeyedBench:
    """A group's broker, with a folder for the store of one machine."""
    return KeyedBench(tmp_path / "one")


def test_a_start_takes_up_files_that_were_to_replace_its_store(
    bench: KeyedBench, tmp_path: Path
) -> None:
    """It reads of the changelog what came since the copy, and counts on from all of it."""
    files = tmp_path / "copied"
    with bench.daemon() as first:
        held = first.assign(0)
        for _ in range(3):
            first.send(held, b"a")
        first.processor.on_stream_termination(held)
        position = first.store.position(0)
        assert position is not None
        shutil.copytree(first.processor.state_reader().copy_files(), files)
        held = first.assign(0)
        first.send(held, b"a")
    other = bench.on_machine(tmp_path / "two")
    with other.daemon() as former:
        former.assign(1)
    # a restore that was ended once the files were whole
    files.rename(other.folder.with_name("db.new"))
    with capture_logs() as logged, other.daemon() as second:
        held = second.assign(0)
        assert second.counted(0, b"a") == 4
        second.send(held, b"a")
        assert second.counted(0, b"a") == 5
    (replaced,) = [each for each in logged if each["event"] == "state_store_replaced"]
    assert replaced["folder"] == str(other.folder)
    started = [each for each in logged if each["event"] == "restore_started"]
    assert [(each["partition"], each["start"]) for each in started] == [(0, position.offset)]
    assert not [each for each in logged if each["event"] == "local_state_dropped"]
    assert [each.name for each in other.folder.parent.iterdir()] == ["db"]
