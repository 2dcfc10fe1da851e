from __future__ import annotations

import pytest

from tests.unit.coordinators.group import Group


@pytest.fixture
def group() -> Group:
    """Return a group of eight partitions without members."""
    return Group()
