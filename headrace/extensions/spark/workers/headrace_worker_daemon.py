"""pyspark's process that forks Python workers, deaf to SIGTERM as they are, and with cheap tasks.

Spark's JVM starts this in place of ``pyspark.daemon``. A SIGTERM for all processes of a service, as
systemd sends with KillMode=control-group, would take the workers away from the micro-batch that the
stop waits for. They end with the JVM, when their standard input does.

pyspark 4.0 has each task read all zip archives on the path again, and all lines collect garbage
among all objects of the worker after it: some 100 ms of processor time for a task that does
nothing. Here archives are read again if they have changed, and what belongs to imported modules is
looked through once.

This is a top-level module in a folder of its own, and imports nothing of Headrace: workers are
forked from it, and should be small.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import zipimport
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark import daemon

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def read_changed_archives_only() -> None:
    """Read archives again only if they have changed.

    pyspark 4.0 invalidates the caches of the path before each task, 4.2 only where the path itself
    has changed. So each look for a module sees whether its archive is as it was.
    """
    if not hasattr(zipimport.zipimporter, "invalidate_caches"):
        return
    read = zipimport.zipimporter.invalidate_caches
    find = zipimport.zipimporter.find_spec
    known: WeakKeyDictionary[zipimport.zipimporter, tuple[int, ...] | None] = WeakKeyDictionary()

    def invalidate_caches(self: zipimport.zipimporter) -> None:
        version = _version(self.archive)
        if version is None or known.get(self) != version:
            read(self)
            known[self] = version

    def find_spec(
        self: zipimport.zipimporter, fullname: str, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        invalidate_caches(self)
        return find(self, fullname, target)

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign]
    zipimport.zipimporter.find_spec = find_spec  # type: ignore[method-assign]


def _version(archive: str) -> tuple[int, ...] | None:
    """Return what differs when a file was changed or replaced, None where there is no file."""
    try:
        found = os.stat(archive)  # noqa: PTH116 - pathlib would be one more import
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def freezing(main: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``main`` such that what its modules hold is garbage no more, once they are imported.

    pyspark collects garbage after each task. Modules live as long as the worker does.
    """
    modules = len(sys.modules)

    def run(*arguments: Any) -> Any:
        nonlocal modules
        try:
            return main(*arguments)
        finally:
            if len(sys.modules) > modules:
                modules = len(sys.modules)
                freeze()

    return run


def freeze() -> None:
    """Collect garbage, and leave what there is now out of all later collections."""
    if hasattr(gc, "freeze"):
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    read_changed_archives_only()
    importlib.invalidate_caches()
    daemon.worker = freezing(daemon.worker)
    freeze()
    manage: Callable[[], None] = daemon.manager
    manage()
