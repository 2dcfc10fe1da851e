"""pyspark's process that forks Python workers, deaf to SIGTERM as they are, and with cheap tasks.

Spark's JVM starts this in place of ``pyspark.daemon``. A SIGTERM for all processes of a service, as
systemd sends with KillMode=control-group, would take the workers away from the micro-batch that the
stop waits for. They end with the JVM, when their standard input does.

pyspark has each task read all zip archives on the path again, and collect garbage among all objects
of the worker: some 100 ms of processor time for a task that does nothing. Here archives are read
again if they have changed, and what belongs to imported modules is looked through once.

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


def read_changed_archives_only() -> None:
    """Have ``importlib.invalidate_caches`` read only those archives again that have changed."""
    if not hasattr(zipimport.zipimporter, "invalidate_caches"):
        return
    read = zipimport.zipimporter.invalidate_caches
    known: WeakKeyDictionary[zipimport.zipimporter, tuple[int, ...] | None] = WeakKeyDictionary()

    def invalidate_caches(self: zipimport.zipimporter) -> None:
        version = _version(self.archive)
        if version is None or known.get(self) != version:
            read(self)
            known[self] = version

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign]


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
    if hasattr(daemon, "worker_main"):
        daemon.worker_main = freezing(daemon.worker_main)
    freeze()
    daemon.manager()  # type: ignore[no-untyped-call]
