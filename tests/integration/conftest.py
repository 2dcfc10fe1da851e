"""The shared fixtures of tests on real servers: the log of what runs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.seen import recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.seen import Log


@pytest.fixture
def log() -> Iterator[Log]:
    """All events that are logged in this process during the test."""
    with recorded() as log:
        yield log
