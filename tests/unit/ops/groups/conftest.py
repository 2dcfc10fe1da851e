from __future__ import annotations

import pytest

from tests.unit.ops.groups.scene import Scene


@pytest.fixture
def scene() -> Scene:
    """Four partitions and nobody yet."""
    return Scene()
