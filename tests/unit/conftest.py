"""Settings that keep the unit tests quick, as they run before every push."""

from __future__ import annotations

import gc
import os

import pytest
import structlog
from hypothesis import settings

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
    """Freeze objects of imports and collection, which stay until the end anyway."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Log tracebacks as Python prints them: structlog's, with all variables, take 0.1 s each."""
    *before, _ = structlog.get_config()["processors"]
    formatter = structlog.dev.plain_traceback
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=formatter)
    structlog.configure(processors=[*before, renderer])
