"""The configuration that is meant where none is named."""

from __future__ import annotations

from pathlib import Path

NAME = "headrace.yaml"


def usual_file() -> Path | None:
    """Return the file of that name in the current folder, None where there is none."""
    file = Path(NAME)
    return file if file.exists() else None
