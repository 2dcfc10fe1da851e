"""Checkers that are programs in Go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

_BUILT = Path(__file__).parents[1] / ".tools"


def go_tool(name: str) -> str:
    """Return a program's path: of those built here, or of the PATH; skip where there is none."""
    found = shutil.which(name, path=str(_BUILT)) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: python3 scripts/go_tools.py builds it, which takes Go")
    return found
