from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psutil
import pytest

from headrace.config.types.units import GIB, MIB
from headrace.core.findings import Level
from headrace.ops.doctor.machine import (
    check_disk,
    check_memory,
    check_open_files,
    memory,
    needed_memory,
    spark_folders,
)
from tests.unit.ops.doctor.support import bad, config, only

if TYPE_CHECKING:
    from pathlib import Path


def test_memory_counts_heap_buffers_and_what_comes_on_top(tmp_path: Path) -> None:
    """A gigabyte of heap takes 384 MiB more, each channel its buffer, and Python its own."""
    settings = config(tmp_path)
    assert needed_memory(settings, spark=True) == GIB + (384 + 128 + 230) * MIB
    assert needed_memory(settings, spark=False) == (128 + 230) * MIB


@pytest.mark.parametrize(
    ("gibibytes", "level"), [(1, Level.ERROR), (2, Level.WARNING), (8, Level.OK)]
)
def test_memory_has_to_be_there(tmp_path: Path, gibibytes: int, level: Level) -> None:
    """Less than needed is an error, hardly more is a warning."""
    (found,) = check_memory(config(tmp_path), spark=True, total=gibibytes * GIB)
    assert found.level is level
    assert bool(found.advice) == (level is not Level.OK)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    """The least of the machine's memory and the limits that are set is what there is."""
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text(f"{MIB}\n")
    unset, absent = tmp_path / "max", tmp_path / "absent"
    assert memory(2 * MIB, (unset, absent)) == 2 * MIB
    assert memory(2 * MIB, (unset, tmp_path / "limit")) == MIB


def test_the_machine_s_memory_is_known_without_a_container(tmp_path: Path) -> None:
    """It is what psutil says of this machine, which is at least what this process has."""
    own = psutil.Process().memory_info().rss
    assert own < memory(cgroups=(tmp_path / "absent",)) == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("limit", "level"),
    [(100, Level.ERROR), (1024, Level.WARNING), (4096, Level.OK), (-1, Level.OK)],
)
def test_open_files_have_to_be_allowed(tmp_path: Path, limit: int, level: Level) -> None:
    """Fewer than the clients take are an error, the usual thousand a warning; -1 is no limit."""
    (found,) = check_open_files(config(tmp_path), limit)
    assert found.level is level


@pytest.mark.parametrize(
    ("free", "level"), [(MIB, Level.ERROR), (GIB + 1, Level.WARNING), (100 * GIB, Level.OK)]
)
def test_space_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    """The nearest existing folder above each path is checked."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))
    sink = {"type": "delta", "path": str(tmp_path / "tables" / "flights")}
    settings = config(tmp_path, {"sink": sink})
    found = {f.check: f for f in check_disk(settings, {}, spark=True)}
    assert found["disk of Spark's local folder"].level is level
    assert str(tmp_path) in found["disk of channel flights's sink"].seen
    if level is Level.OK:
        assert not bad(found.values())


def test_sparks_folders_are_those_that_spark_takes(tmp_path: Path) -> None:
    """The environment wins over the property, as in Spark."""
    settings = config(tmp_path, spark={"properties": {"spark.local.dir": "/a, /b"}})
    assert [str(folder) for folder in spark_folders(settings, {})] == ["/a", "/b"]
    named = spark_folders(settings, {"SPARK_LOCAL_DIRS": "/c"})
    assert [str(folder) for folder in named] == ["/c"]


def test_a_full_disk_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tables and Spark only the state's folder is looked at."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    assert only(check_disk(config(tmp_path), {}, spark=False)).level is Level.ERROR
