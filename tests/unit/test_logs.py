from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Literal

import pytest
import structlog

from headrace.config import LoggingConfig
from headrace.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Put the process's logging back."""
    configuration, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**configuration)
    root.handlers[:] = handlers
    root.setLevel(level)


def _fail() -> None:
    password = "hunter2"
    raise ValueError(f"refused after {len(password)} letters")


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("kind", ["console", "json"])
def test_a_logged_error_shows_no_local_variables(
    kind: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback is there, in both formats, and what variables hold is not."""
    configure_logging(LoggingConfig(format=kind))
    try:
        _fail()
    except ValueError:
        structlog.get_logger("test").exception("failed")
    written = capsys.readouterr().err
    assert "refused after 7 letters" in written
    assert "in _fail" in written
    assert "= 'hunter2'" not in written
    assert 'password = "hunter2"' not in written


@pytest.mark.usefixtures("_as_before")
def test_events_are_json_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal each event is one JSON object with its level, logger and time."""
    configure_logging(LoggingConfig())
    structlog.get_logger("headrace.test").warning("partition_lost", partition=3)
    event = json.loads(capsys.readouterr().err)
    assert event.pop("timestamp")
    assert event == {
        "event": "partition_lost",
        "partition": 3,
        "level": "warning",
        "logger": "headrace.test",
    }
