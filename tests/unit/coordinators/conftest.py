from __future__ import annotations

import pytest
from hypothesis import settings

from tests.unit.coordinators.group import Group

# how long an example takes says something about the machine only
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


@pytest.fixture
def group() -> Group:
    """Eight partitions and nobody yet."""
    return Group()
