"""Files that are written whole or not at all, and what they hold."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def digest(path: Path) -> str:
    """Return what stands for the file's content; the same for all that cannot be read."""
    try:
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError:
        return ""


def read_regular(path: Path, most: int = -1) -> bytes:
    """Return what a regular file holds, ``most`` bytes of it at most.

    Never waits for a writer, as opening a FIFO does. Blocks for as long as the disk takes; where
    the file is on a mount whose server is away, that may be for good.

    Raises:
        OSError: it cannot be read, or is something else than a file.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return file.read(most)


def write_whole(path: Path, text: str) -> None:
    """Write a file, readable by its owner alone, so that no reader ever sees half of it.

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


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
