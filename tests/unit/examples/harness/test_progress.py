from __future__ import annotations

import io

from rich.console import Console

from examples.demo.story import DemoPhase
from examples.harness.progress import DemoProgress, MemberView, View

MEMBER = MemberView("daemon-1", "running", frozenset({1, 0}), 7, 12, 3.25, 4)
VIEW = View(DemoPhase.FLOWING, 12.4, total=100, produced=50, stored=25, members=[MEMBER])


def shown(*, terminal: bool) -> str:
    """Show two views one after the other and return what was written."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with DemoProgress(console) as progress:
        progress.show(VIEW)
        progress.show(VIEW)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    """Two views in a row make one line for the phase and one for the figures."""
    phase, figures = shown(terminal=False).splitlines()
    assert phase == "  12 s  both daemons work"
    assert figures == (
        "  12 s  50 of 100 records produced, 25 in the table (25%), lag 25 | daemon-1 (running): "
        "partitions 0 1, lag 7, 12 batches, Spark 3.2 s, 4 commits"
    )


def test_on_a_terminal_there_is_a_table() -> None:
    """The live display has the same figures under their names."""
    text = shown(terminal=True)
    for word in ("50 of 100 records produced", "Spark time", "3.2 s", "daemon-1", "0 1"):
        assert word in text
