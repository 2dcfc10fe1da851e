"""A stopped channel for each test."""

from __future__ import annotations

import pytest

from tests.unit.ops.offsets.stage import Stage


@pytest.fixture
def stage() -> Stage:
    """A stopped channel."""
    return Stage()
