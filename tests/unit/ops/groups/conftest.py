from __future__ import annotations

import pytest

from tests.unit.ops.groups.scene import Scene


@pytest.fixture
def scene() -> Scene:
    """Return a scene with four partitions and no member."""
    return Scene()
