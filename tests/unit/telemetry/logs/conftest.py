from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from headrace.telemetry.logs import flush
from headrace.telemetry.logs.levels import QUIET, forget_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Put the process's logging back."""
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


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """Return what was written since the last look, as events."""

    def look() -> list[dict[str, Any]]:
        flush()
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    return look
