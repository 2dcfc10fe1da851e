from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headrace.telemetry.logs import flush

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """Return what was written since the last look, as events."""

    def look() -> list[dict[str, Any]]:
        flush()
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    return look
