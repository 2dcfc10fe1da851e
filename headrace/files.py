"""Files that are written whole or not at all, and what they hold."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def digest(path: Path) -> str:
    """Return what stands for the file's content; the same for all that cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def write_whole(path: Path, text: str) -> None:
    """Write a file, readable by its owner alone, so that nobody ever sees half of it.

    It is on the disk when this returns, in place of a former one.

    Raises:
        OSError: it cannot be written; a former one is as it was.
    """
    # mkstemp makes the file 0600
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
