from __future__ import annotations

import sys

import pytest

from tests.programs import run_program

_SCRIPT = """
import threading, warnings
from headrace.config import LoggingConfig
from headrace.telemetry.logs import configure_logging, install_hooks

configure_logging(LoggingConfig(format="json"))
install_hooks()


class Broken:
    def __del__(self):
        raise ValueError("in a finalizer")


def fail():
    raise ValueError("in a thread")


warnings.warn("old call", DeprecationWarning, stacklevel=1)
warnings.warn("odd value")
Broken()
thread = threading.Thread(target=fail, name="worker-1")
thread.start()
thread.join()
raise KeyError("at the end")
"""


@pytest.fixture(scope="module")
def written() -> list[str]:
    """Return the lines of a process with each kind of uncaught error."""
    done = run_program([sys.executable, "-c", _SCRIPT])
    assert done.returncode == 1
    return done.stderr.splitlines()


def test_everything_is_an_event(written: list[str]) -> None:
    """Warnings and uncaught errors are JSON lines, without other output."""
    events = [line.split('"event": "')[1].split('"')[0] for line in written]
    assert events == ["python_warning"] * 2 + [
        "unraisable_error",
        "thread_died",
        "main_thread_died",
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "odd value"),
        (2, "ValueError: in a finalizer"),
        (3, "ValueError: in a thread"),
        (4, "KeyError: 'at the end'"),
    ],
)
def test_an_event_says_what_was_raised(written: list[str], line: int, text: str) -> None:
    """The traceback, or the warning's text, is in the line."""
    assert text in written[line]
