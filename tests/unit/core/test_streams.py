"""Text on streams that cannot encode it."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from headrace.core.hints import did_you_mean
from headrace.core.streams import take_any_text

_PRINTED = """
import sys
sys.path[:0] = {path!r}
import pyarrow as pa
from headrace.sinks.console import ConsoleSink
from types import SimpleNamespace
sink = ConsoleSink()
batch = SimpleNamespace(channel="c", records=1)
sink.commit(sink.stage(batch, pa.table({{"city": ["Z\u00fcrich \u2708"]}})), [])
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_the_console_sink_prints_wherever_it_runs(encoding: str) -> None:
    """A character that the stream cannot encode is escaped, and the channel goes on."""
    done = subprocess.run(
        [sys.executable, "-c", _PRINTED.format(path=sys.path)],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": encoding},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode(encoding)
    assert ("Z\u00fcrich" if encoding != "ascii" else "Z\\xfcrich") in shown
    assert ("\u2708" if encoding == "utf-8" else "\\u2708") in shown


def test_half_a_character_is_written_as_an_escape() -> None:
    """JSON may hold one, and UTF-8 has none."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="utf-8")
    take_any_text(stream)
    stream.write("\ud800")
    stream.flush()
    assert written.getvalue() == rb"\ud800"


def test_a_stream_without_bytes_is_left_alone() -> None:
    """Streams of tests and notebooks stay, and one with a chosen error handler."""
    take_any_text(io.StringIO())
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="ignore")
    take_any_text(stream)
    assert stream.errors == "ignore"


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["flight"], "; did you mean flights?"),
        (["flihgts", "order"], "; did you mean flights and orders?"),
        (["payments"], ""),
        ([], ""),
    ],
)
def test_a_name_that_is_near_is_offered(names: list[str], hint: str) -> None:
    """Each name's nearest, nothing where none is near."""
    assert did_you_mean(names, ["flights", "orders"]) == hint
