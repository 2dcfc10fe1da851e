from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _as_before(logging_as_before: None) -> None:
    """Put the process's logging back: commands configure it."""
