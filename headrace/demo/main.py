"""From the command line's options to an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from headrace.demo import demo
from headrace.demo.interruption import Interruption, interruptible
from headrace.demo.progress import say
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pathlib import Path

_FAILED = 1


def main(
    rows: int | None,
    seconds: float,
    directory: Path | None,
    verify_only: Path | None,
    *,
    keep: bool,
) -> int:
    """Run or check, say how it went, and return the exit code. On the main thread."""
    console, errors = Console(), Console(stderr=True)
    try:
        with interruptible():
            if verify_only is not None:
                verdict = demo.check(verify_only, console)
            else:
                verdict = demo.run(demo.Options(rows, seconds, directory, keep), console)
    except Interruption as interruption:
        say(errors, "interrupted; nothing is left running")
        return 128 + interruption.number
    except HeadraceError as error:
        say(errors, str(error))
        return _FAILED
    say(console, str(verdict))
    return 0 if verdict.holds else _FAILED
