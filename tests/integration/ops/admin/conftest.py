"""The scene of the API's own tests, for what asks it over a socket."""

from __future__ import annotations

from tests.unit.ops.admin.conftest import bare, scene, stage, usual_levels

__all__ = ["bare", "scene", "stage", "usual_levels"]
