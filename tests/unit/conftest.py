"""What keeps the ring of the unit tests quick: it runs before every push."""

from __future__ import annotations

import gc
import logging
import os
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

from headrace.telemetry.logs.levels import QUIET, forget_levels

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says something about the machine only. Fifty examples of each property
# are what a run has time for; Hypothesis draws others with each run and keeps those that failed.
settings.register_profile("headrace", deadline=None, max_examples=50)
settings.load_profile("headrace")

# What `make test-all` has time for; HEADRACE_MODEL_EXAMPLES says how many, where more are wanted.
settings.register_profile(
    "long",
    settings.get_profile("headrace"),
    max_examples=int(os.environ.get("HEADRACE_MODEL_EXAMPLES", "500")),
)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what imports and collection made: it stays anyway."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Log tracebacks as Python prints them: structlog's, with all variables, take 0.1 s each."""
    *before, _ = structlog.get_config()["processors"]
    formatter = structlog.dev.plain_traceback
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=formatter)
    structlog.configure(processors=[*before, renderer])


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Put the process's logging back after a test that configures it, as a command does."""
    configuration, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in QUIET}
    yield
    structlog.configure(**configuration)
    structlog.contextvars.clear_contextvars()
    forget_levels()
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, number in quiet.items():
        logging.getLogger(name).setLevel(number)
