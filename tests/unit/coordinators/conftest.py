from __future__ import annotations

import pytest

from tests.unit.coordinators.group import Group


@pytest.fixture
def group() -> Group:
    """Eight partitions and nobody yet."""
    return Group()
