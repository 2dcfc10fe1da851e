from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import StartError
from headrace.sinks.jsonl import JsonLinesSink

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the lines."""
    return tmp_path / "rows.jsonl"


@pytest.fixture
def sink(path: Path) -> JsonLinesSink:
    """Open a sink."""
    sink = JsonLinesSink(path)
    sink.open()
    return sink


def test_lines_are_appended(sink: JsonLinesSink, path: Path) -> None:
    """Commits follow upon one another, and one without rows adds nothing."""
    for staged in (b'{"id":1}\n', b"", b'{"id":2}\n{"id":3}\n'):
        sink.commit(staged, [])

    assert path.read_bytes() == b'{"id":1}\n{"id":2}\n{"id":3}\n'


@pytest.mark.parametrize("torn", [b'{"id":', b"x" * 200_000])
def test_a_line_that_a_crash_cut_short_is_removed(
    torn: bytes, sink: JsonLinesSink, path: Path
) -> None:
    """Half a line at the end was never answered: the next append takes its place."""
    path.write_bytes(b'{"id":1}\n' + torn)

    sink.commit(b'{"id":2}\n', [])

    assert path.read_bytes() == b'{"id":1}\n{"id":2}\n'


def test_a_file_that_is_one_torn_line_is_emptied(sink: JsonLinesSink, path: Path) -> None:
    """A file without a line end has no whole line."""
    path.write_bytes(b'{"id":')

    sink.commit(b'{"id":2}\n', [])

    assert path.read_bytes() == b'{"id":2}\n'


def test_an_append_that_fails_leaves_nothing(
    sink: JsonLinesSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle of an append takes back what was written of it."""
    sink.commit(b'{"id":1}\n', [])
    real = os.write
    calls: list[int] = []

    def write_half(descriptor: int, content: bytes) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, bytes(content[:4]))

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(OSError, match="No space left"):
        sink.commit(b'{"id":2}\n', [])
    monkeypatch.undo()

    assert path.read_bytes() == b'{"id":1}\n'
    sink.commit(b'{"id":2}\n', [])
    assert path.read_bytes() == b'{"id":1}\n{"id":2}\n'


def test_several_sinks_share_a_file(path: Path) -> None:
    """Appends of different sinks at the same time do not mix."""
    sinks = [JsonLinesSink(path) for _ in range(4)]

    def append(number: int) -> None:
        for _ in range(20):
            sinks[number].commit((b"%d" % number) * 5000 + b"\n", [])

    threads = [threading.Thread(target=append, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(str(number) * 5000 for number in range(4) for _ in range(20))


def test_a_path_that_cannot_be_written_is_a_start_error(tmp_path: Path) -> None:
    """A folder where the file should be is found at the start."""
    with pytest.raises(StartError, match="cannot be written"):
        JsonLinesSink(tmp_path).open()
