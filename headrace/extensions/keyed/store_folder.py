"""The folder of a local store: copies of its files, and having others in their place."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StoreFolder:
    """The folder with the database of a store, and those next to it that belong to it.

    Files that are to be in its place are written to a folder next to it. Once they are whole, that
    one is renamed to ``NAME.new``, which cannot be undone: :meth:`settle` goes on from there.
    However a process ends, either the former files or the new ones are there after it.

    All methods block, and are for the owner of the store, but for :attr:`is_unsettled`.

    Raises:
        OSError: the files cannot be written, renamed or deleted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part, self._new, self._former = (
            path.with_name(f"{path.name}.{kind}") for kind in ("part", "new", "former")
        )

    @property
    def is_unsettled(self) -> bool:
        """Return whether files are whole that are to be in the place of the store's."""
        return self._new.exists()

    def begin_copy(self) -> Path:
        """Return where the next copy of the files goes; former copies are deleted."""
        self._delete_copies()
        return self.path.with_name(f"{self.path.name}.copy-{time.time_ns()}")

    def settle(self) -> None:
        """Finish what a process had begun here, and delete what is left of it."""
        _delete(self._part)
        self._delete_copies()
        if self._new.exists():
            if self.path.exists():
                _delete(self._former)
                self.path.rename(self._former)
                _sync(self.path.parent)
            self._new.rename(self.path)
            _sync(self.path.parent)
        _delete(self._former)

    @contextmanager
    def replacing(self) -> Iterator[Path]:
        """Yield an empty folder; what is in it at the end of the block replaces the files.

        An exception in the block leaves the store as it was. The block has its files on the disk
        before it ends.
        """
        self.settle()
        self._part.mkdir(mode=0o700, parents=True)
        try:
            yield self._part
        except BaseException:
            _delete(self._part)
            raise
        _sync(self._part)
        self._part.rename(self._new)
        _sync(self.path.parent)
        self.settle()

    def _delete_copies(self) -> None:
        for copy in self.path.parent.glob(f"{self.path.name}.copy-*"):
            _delete(copy)


def _delete(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
