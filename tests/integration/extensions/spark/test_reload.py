"""Code and a session that are exchanged under a Spark processor."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from headrace.config import ChannelConfig
from headrace.controller.code import CodeBook
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.extensions.spark.reducer import load_reducer
from headrace.extensions.spark.settings import SparkSettings
from tests.integration.extensions.spark.channels import (
    ADVANCE,
    SECONDS,
    Channel,
    _wait_for_tasks,
    places,
    slow,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.extensions.spark.runtime import SparkRuntime

pytestmark = pytest.mark.timeout(300)

_JOBS = """
from pyspark.sql.functions import udf

from tagging.helpers import tag


def reduce(df, batch):
    tagged = udf(tag, "string")
    return df.select("offset", tagged("offset").alias("tag"))
"""


def test_a_changed_helper_of_a_udf_reaches_sparks_workers(
    channel: Callable[..., Channel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows tell which code made them: workers that are used again run the new one."""
    package = tmp_path / "tagging"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(_JOBS, encoding="utf-8")
    helper = "def tag(offset):\n    return 'NAME'"
    monkeypatch.syspath_prepend(str(tmp_path))
    values: dict[str, Any] = {
        "topics": ["t"],
        "group": "g",
        "processor": {"type": "spark", "reducer": "tagging.jobs:reduce", "reload": True},
        "sink": "noop",
    }
    config, book = ChannelConfig.model_validate(values), CodeBook()
    for start, name in enumerate(["one", "two"]):
        (package / "helpers.py").write_text(helper.replace("NAME", name), encoding="utf-8")
        assert (book.change("main") is None) == (start == 0)
        book.forget("main")
        ch = channel(load_reducer("tagging.jobs:reduce"))
        book.note("main", config)
        assert ch.send(0, [b"v"], start=start).result(SECONDS) == ADVANCE
    rows = sorted((row["offset"], row["tag"]) for row in ch.rows())
    assert rows == [(0, "one"), (1, "two")]
    for module in [name for name in sys.modules if name.partition(".")[0] == "tagging"]:
        del sys.modules[module]


def _import_from(archive: str, module: str) -> Callable[[Any], Any]:
    def task(rows: Any) -> Any:
        import importlib  # noqa: PLC0415 - runs in a Python worker
        import os  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import zipimport  # noqa: PLC0415

        list(rows)  # a worker that has not read all is not used again
        if archive not in sys.path:
            sys.path.insert(0, archive)
        importlib.import_module(module)
        listing = zipimport._zip_directory_cache[archive]  # type: ignore[attr-defined]
        former = sys.__dict__.get("listing of the archive")
        sys.__dict__["listing of the archive"] = listing
        yield os.getpid(), former is listing

    return task


def test_workers_read_an_archive_again_once_it_has_changed(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """A worker that is used again has a changed archive's modules, and else what it once read."""
    archive, context = tmp_path / "code.zip", spark_runtime.context

    def jobs(module: str, count: int) -> list[tuple[int, bool]]:
        task = _import_from(str(archive), module)
        one = context.parallelize([0], 1).mapPartitions(task)
        return [found for _ in range(count) for found in one.collect()]

    def pack(*modules: str) -> None:
        with ZipFile(archive, "w") as packed:
            for name in modules:
                packed.writestr(f"{name}.py", f"NAME = {name!r}")

    pack("packed_one")
    kept: dict[int, list[bool]] = {}
    # the session's idle workers take their turns, and other tests may have left many
    for worker, is_as_before in jobs("packed_one", 60):
        kept.setdefault(worker, []).append(is_as_before)
    # with a worker's second task the path is looked at for the first time
    assert all(all(found[2:]) for found in kept.values())
    assert any(found[2:] for found in kept.values())
    pack("packed_one", "packed_two")

    assert {worker for worker, _ in jobs("packed_two", 4)} <= kept.keys()


# pyspark leaves the pipe to a JVM that gave up to the garbage collector
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.slow
def test_a_session_is_exchanged_between_micro_batches(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """The channel goes on in the new session, and in one as before where that cannot be had."""
    ch, former = channel(places), spark_runtime.settings
    generation = spark_runtime.generation
    assert ch.send(0, [b"v"]).result(SECONDS) == ADVANCE
    wanted = replace(former, properties={**former.properties, "spark.app.name": "another"})
    assert spark_runtime.replace(wanted, Deadline.after(SECONDS))
    assert spark_runtime.context.appName == "another"
    assert ch.send(0, [b"v"], start=1).result(SECONDS) == ADVANCE
    with pytest.raises(StartError, match="Spark did not start on nowhere"):
        spark_runtime.replace(SparkSettings("nowhere"), Deadline.after(SECONDS))
    assert spark_runtime.settings == wanted
    assert spark_runtime.generation == generation + 2
    assert ch.send(0, [b"v"], start=2).result(SECONDS) == ADVANCE
    assert sorted(row["offset"] for row in ch.rows()) == [0, 1, 2]


@pytest.mark.slow
def test_a_session_is_not_exchanged_under_a_micro_batch(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """A job that runs for long keeps its session, and is not disturbed."""
    ch, generation = channel(slow), spark_runtime.generation
    future = ch.send(1, [b"v"])
    _wait_for_tasks(spark_runtime)
    assert not spark_runtime.replace(spark_runtime.settings, Deadline.after(0.2))
    assert spark_runtime.generation == generation
    assert not future.done()
    ch.processor.on_partition_lost(ch.assignments[1])
    assert ch.send(0, [b"v"]).result(SECONDS) == ADVANCE
