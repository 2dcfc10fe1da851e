from __future__ import annotations

import gc
import importlib
import os
import sys
import zipimport
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from headrace.extensions.spark.workers import headrace_worker_daemon as worker_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def _pack(archive: Path, *modules: str) -> None:
    with ZipFile(archive, "w") as packed:
        for name in modules:
            packed.writestr(f"{name}.py", f"NAME = {name!r}")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An archive on the path, with the module ``packed_one`` in it."""
    found = tmp_path / "code.zip"
    _pack(found, "packed_one")
    monkeypatch.syspath_prepend(str(found))
    # registers the methods for the undoing, as what is tested replaces them
    kind = zipimport.zipimporter
    monkeypatch.setattr(kind, "invalidate_caches", kind.invalidate_caches)
    monkeypatch.setattr(kind, "find_spec", kind.find_spec)
    yield found
    for name in ("packed_one", "packed_two"):
        sys.modules.pop(name, None)


def test_an_archive_as_it_was_is_not_read_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has the caches invalidated; of an archive that was read that costs a stat."""
    read: list[str] = []
    monkeypatch.setattr(
        zipimport.zipimporter, "invalidate_caches", lambda importer: read.append(importer.archive)
    )
    worker_daemon.read_changed_archives_only()
    importlib.import_module("packed_one")

    for _task in range(5):
        importlib.invalidate_caches()

    assert read.count(str(archive)) == 1


@pytest.mark.parametrize("way", ["written", "replaced", "same size"])
@pytest.mark.parametrize("invalidate", [importlib.invalidate_caches, list])
def test_a_changed_archive_is_noticed(
    archive: Path, tmp_path: Path, way: str, invalidate: Callable[[], object]
) -> None:
    """A module that was not there can be imported, and one that is gone cannot.

    So it is whether or not pyspark invalidates the caches of the path before a task.
    """
    worker_daemon.read_changed_archives_only()
    importlib.import_module("packed_one")
    importlib.invalidate_caches()
    if way == "replaced":
        _pack(tmp_path / "next.zip", "packed_two")
        (tmp_path / "next.zip").replace(archive)
    else:
        _pack(archive, "packed_two", *(["packed_three"] if way == "written" else []))
        # the clock of files may not have moved on since the first version
        now = archive.stat().st_mtime_ns
        os.utime(archive, ns=(now, now + 1_000_000))

    invalidate()

    assert importlib.import_module("packed_two").NAME == "packed_two"
    del sys.modules["packed_one"]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("packed_one")


def test_an_archive_that_comes_back_is_read(archive: Path) -> None:
    """One that is away for a moment, as when it is replaced, is not given up."""
    worker_daemon.read_changed_archives_only()
    importlib.import_module("packed_one")
    archive.unlink()
    importlib.invalidate_caches()
    _pack(archive, "packed_one", "packed_two")

    importlib.invalidate_caches()

    assert importlib.import_module("packed_two").NAME == "packed_two"


def test_a_worker_starts_where_python_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python promises neither attribute; without them a worker starts, and tasks cost more."""
    monkeypatch.delattr(zipimport.zipimporter, "invalidate_caches")
    monkeypatch.delattr(gc, "freeze")

    worker_daemon.read_changed_archives_only()
    worker_daemon.freeze()

    assert not hasattr(zipimport.zipimporter, "invalidate_caches")


def test_imported_objects_are_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are frozen after a task that imported modules, and not after others."""
    frozen: list[str] = []
    monkeypatch.setattr(worker_daemon, "freeze", lambda: frozen.append("frozen"))

    def main(task: str) -> str:
        monkeypatch.setitem(sys.modules, f"imported by {task}", sys)
        return task

    run = worker_daemon.freezing(main)

    assert [run(task) for task in ("a", "a", "b", "a", "b")] == ["a", "a", "b", "a", "b"]
    assert len(frozen) == 2


def test_garbage_of_tasks_is_collected_still() -> None:
    """Only what there is at that moment is left out of later collections."""
    try:
        worker_daemon.freeze()
        assert gc.get_freeze_count() > 0
        circle: list[object] = []
        circle.append(circle)
        del circle
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
