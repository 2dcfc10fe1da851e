"""The programs of scripts/, to be called by tests."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.pages import ROOT


def script(name: str) -> Any:
    """Import a program, which finds the others of its folder as it does when it is run."""
    folder = str(ROOT / "scripts")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
