"""A controller that runs, and its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.controller.world import World, running_world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A process with the channel ``main``."""
    monkeypatch.setattr("headrace.controller.reload.FIRST_RETRY", 0.01)
    with running_world(tmp_path, monkeypatch) as world:
        yield world
