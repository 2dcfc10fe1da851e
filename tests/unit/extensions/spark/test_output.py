from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.extensions.spark.gateway import LAST_WORDS, OutputPump
from headrace.telemetry.logs import Budget
from headrace.testing.channel import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _pumped(text: str, burst: int = 1000) -> Sequence[Mapping[str, Any]]:
    """Return what is logged of a text that a JVM wrote before it died."""
    ours, theirs = os.pipe()
    pump = OutputPump(ours, Budget(1.0, burst, FakeClock()))
    with capture_logs() as entries:
        with os.fdopen(theirs, "w", encoding="utf-8") as stream:
            pump.start()
            stream.write(text)
        pump.finish(10)
    return entries


def _log4j(**fields: str) -> str:
    entry = {"log4j": "WARN", "logger": "a.B", "thread": "main", "detail": "x", "exception": ""}
    return json.dumps({**entry, **fields}, separators=(",", ":")) + "\n"


def test_a_line_of_log4j_becomes_an_event() -> None:
    """Level, text, thread and traceback are told apart."""
    (entry,) = _pumped(
        _log4j(log4j="ERROR", detail="no disk", exception="java.io.IOException\n at")
    )
    assert entry == {
        "event": "spark_log",
        "log_level": "error",
        "detail": "no disk",
        "java_thread": "main",
        "exception": "java.io.IOException\n at",
    }


@pytest.mark.parametrize("line", ["# A fatal error", '{"log4j":"WARN", half', '{"log4j":"NO"}'])
def test_any_other_line_comes_as_it_is(line: str) -> None:
    """Output of a dying JVM or of a Python worker is logged, also if it resembles log4j's."""
    (entry,) = _pumped(f"WARNING: Using incubator modules: x\n\n{line}\n")
    assert (entry["event"], entry["log_level"], entry["line"]) == ("spark_output", "warning", line)


def test_a_line_without_an_end_comes_in_pieces() -> None:
    """Memory is bounded, whatever is written."""
    entries = _pumped("x" * 200_000)
    assert len(entries) == 4
    assert all(len(entry["line"]) <= 16384 for entry in entries)


def test_last_words_are_not_held_back() -> None:
    """The first and last lines of a flood are written, with a count of the others."""
    written = 500
    entries = _pumped("".join(f"line {n}\n" for n in range(written)), burst=10)
    assert [e["line"] for e in entries[:10]] == [f"line {n}" for n in range(10)]
    assert entries[-1]["line"] == f"line {written - 1}"
    assert len(entries) == 10 + LAST_WORDS
    assert entries[10]["suppressed"] == written - len(entries)
